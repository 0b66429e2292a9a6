//! The contenders: policies by name, each with a configuration.

use cachalot_core::Config;
use cachalot_policies::NAMES as POLICIES;

/// Prefix of a configuration string with a policy's name.
const PREFIX: &str = "policy:";

/// Returns the policy called `name`.
///
/// # Errors
/// The accepted names.
pub fn policy_named(name: &str) -> Result<&'static str, String> {
    let names = || format!("unknown policy `{name}`: it must be one of {}", POLICIES.join(", "));
    POLICIES.into_iter().find(|&known| known == name).ok_or_else(names)
}

/// A configuration with a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongConfiguration {
    /// The configuration, without the policy's name.
    pub text: String,
    /// The mistake in words.
    pub mistake: String,
}

/// A configuration string, and the policies for the configuration.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// The policy at the start of the string.
    policy: Option<&'static str>,
    /// The string after the policy's name.
    text: String,
}

impl Configuration {
    /// Reads `[policy:NAME,]SETTINGS`.
    ///
    /// # Errors
    /// A wrong name of a policy, or a name at a wrong place.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(PREFIX) else {
            if text.contains(PREFIX) {
                return Err(format!("`{PREFIX}NAME` comes first in a configuration that names its policy"));
            }
            return Ok(Self { policy: None, text: text.to_owned() });
        };
        let (name, rest) = rest.split_once(',').unwrap_or((rest, ""));
        Ok(Self { policy: Some(policy_named(name)?), text: rest.to_owned() })
    }
}

/// A policy with a configuration, for a comparison with other contenders.
#[derive(Debug, Clone)]
pub struct Contender {
    /// The policy's name.
    pub policy: &'static str,
    /// The configuration string without the policy; empty for the defaults.
    pub text: String,
    /// The configuration from both.
    pub(super) config: Config,
}

impl Contender {
    /// Reads `[policy:NAME,]SETTINGS`. A configuration without a policy's name is for the first
    /// policy of [`POLICIES`].
    ///
    /// # Errors
    /// The mistake in the configuration.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Configuration { policy, text } = Configuration::parse(text)?;
        Self::new(policy.unwrap_or(POLICIES[0]), &text)
    }

    /// Returns a configuration as a contender.
    pub fn of(config: &Config) -> Self {
        let text = config.to_string();
        let text = text.split(',').filter(|part| !part.starts_with(PREFIX)).collect::<Vec<_>>().join(",");
        Self { policy: config.policy_name(), text, config: config.clone() }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn new(policy: &'static str, text: &str) -> Result<Self, String> {
        let comma = if text.is_empty() { "" } else { "," };
        let config =
            cachalot_policies::parse(&format!("{PREFIX}{policy}{comma}{text}")).map_err(|error| error.to_string())?;
        Ok(Self { policy, text: text.to_owned(), config })
    }
}

/// Returns each policy with its defaults, and then each configuration with its policies. No pair
/// occurs twice.
///
/// Without given policies, all policies take part. A configuration without a policy's name is for
/// all given policies that have its keys, or for the first policy of [`POLICIES`] if none is given.
///
/// # Errors
/// The mistake in a configuration, for the last of its policies.
pub fn contenders(
    policies: &[&'static str],
    configurations: &[Configuration],
) -> Result<Vec<Contender>, WrongConfiguration> {
    let wrong = |text: &str, mistake| WrongConfiguration { text: text.to_owned(), mistake };
    let (policies, unnamed) = if policies.is_empty() { (&POLICIES[..], &POLICIES[..1]) } else { (policies, policies) };
    let mut contenders: Vec<Contender> = Vec::new();
    let mut add = |contender: Contender| {
        if !contenders.iter().any(|known| known.policy == contender.policy && known.text == contender.text) {
            contenders.push(contender);
        }
    };
    for &policy in policies {
        add(Contender::new(policy, "").map_err(|mistake| wrong("", mistake))?);
    }
    for configuration in configurations {
        let named = configuration.policy.as_ref().map_or(unnamed, std::slice::from_ref);
        let (fitting, refused): (Vec<_>, Vec<_>) =
            named.iter().map(|&policy| Contender::new(policy, &configuration.text)).partition(Result::is_ok);
        if fitting.is_empty() {
            refused.into_iter().last().transpose().map_err(|mistake| wrong(&configuration.text, mistake))?;
        }
        fitting.into_iter().flatten().for_each(&mut add);
    }
    Ok(contenders)
}

#[cfg(test)]
mod tests {
    use super::{Configuration, Contender, POLICIES, contenders, policy_named};

    fn compared(policies: &[&str], configurations: &[&str]) -> Result<Vec<(&'static str, String)>, String> {
        let policies: Vec<_> = policies.iter().map(|name| policy_named(name).expect(name)).collect();
        let configurations: Vec<_> =
            configurations.iter().map(|text| Configuration::parse(text).expect(text)).collect();
        let contenders = contenders(&policies, &configurations).map_err(|wrong| wrong.mistake)?;
        Ok(contenders.into_iter().map(|contender| (contender.policy, contender.text)).collect())
    }

    #[test]
    fn every_policy_competes_with_its_defaults() {
        let names: Vec<_> = POLICIES.iter().map(|&policy| (policy, String::new())).collect();
        assert_eq!(compared(&[], &[]), Ok(names));
        assert_eq!(compared(&["direct"], &[]), Ok(vec![("direct", String::new())]));
    }

    #[test]
    fn a_configuration_is_for_the_policy_it_names_or_those_given_or_the_first() {
        let text = "max_split_size_mb:64";
        assert_eq!(compared(&[], &[text]).unwrap()[POLICIES.len()..], [("caching", text.to_owned())]);
        assert_eq!(
            compared(&["bfc"], &["allow_growth:False", "policy:caching,max_split_size_mb:64"]).unwrap(),
            [("bfc", String::new()), ("bfc", "allow_growth:False".to_owned()), ("caching", text.to_owned())]
        );
    }

    #[test]
    fn one_contender_is_a_configuration_string() {
        let parsed = |text| Contender::parse(text).map(|Contender { policy, text, .. }| (policy, text));
        assert_eq!(parsed("policy:bfc"), Ok(("bfc", String::new())));
        let text = "max_split_size_mb:64";
        assert_eq!(parsed(text), Ok(("caching", text.to_owned())));
        assert_eq!(parsed("policy:caching,max_split_size_mb:64"), Ok(("caching", text.to_owned())));
        assert!(parsed("policy:chaching").unwrap_err().starts_with("unknown policy `chaching`"));
    }

    #[test]
    fn a_key_that_no_policy_given_has_is_an_error() {
        let error = compared(&["bfc"], &["max_split_size_mb:64"]).unwrap_err();
        assert!(error.starts_with("max_split_size_mb is not a key of policy `bfc`; its keys are "), "{error}");
        let text = "expandable_segments:True";
        let found =
            [("caching", ""), ("stitched", ""), ("caching", text)].map(|(policy, text)| (policy, text.to_owned()));
        assert_eq!(compared(&["caching", "stitched"], &[text]), Ok(found.to_vec()), "where it has an effect");
    }

    #[test]
    fn nothing_competes_twice() {
        let configurations = ["policy:caching", "policy:direct,", ""];
        assert_eq!(compared(&["caching", "caching", "direct"], &configurations).unwrap().len(), 2);
    }
}
