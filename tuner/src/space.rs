//! The settings that are searched, and candidates: a policy with values for some of its settings.

use cachalot_core::Config;
use cachalot_core::config::Policies;
use fastrand::Rng;
use std::fmt::Write as _;

/// A setting, with the values to try besides the default.
struct Setting {
    key: &'static str,
    values: &'static [&'static str],
}

const EXPANDABLE: Setting = Setting { key: "expandable_segments", values: &["True"] };
const LARGE_SEGMENT: Setting = Setting { key: "large_segment_size_mb", values: &["12", "32", "64", "128", "256"] };
const COLLECTION: Setting = Setting { key: "garbage_collection_threshold", values: &["0.6", "0.8", "0.9"] };
const MAX_SPLIT: Setting = Setting { key: "max_split_size_mb", values: &["32", "64", "128", "256", "512", "1024"] };
const MAX_ROUNDING: Setting = Setting { key: "max_non_split_rounding_mb", values: &["64", "128", "256", "512"] };
const DIVISIONS: Setting = Setting {
    key: "roundup_power2_divisions",
    values: &["2", "4", "8", "16", "32", "[64:1,256:4,>:8]", "[64:8,256:4,>:2]", "[256:1,512:2,1024:4,>:8]"],
};

/// The settings of a policy.
struct PolicySpace {
    policy: &'static str,
    settings: &'static [Setting],
}

/// The settings of `PyTorch`'s own allocator, as of version 2.11.
const TORCH: PolicySpace = PolicySpace {
    policy: "caching",
    settings: &[EXPANDABLE, MAX_SPLIT, DIVISIONS, MAX_ROUNDING, COLLECTION, LARGE_SEGMENT],
};

/// The settings of cachalot. `planned` needs announced iterations, and `direct` is only for
/// comparison, so neither is here.
const CACHALOT: [PolicySpace; 6] = [
    PolicySpace {
        policy: "caching",
        settings: &[
            EXPANDABLE,
            MAX_SPLIT,
            DIVISIONS,
            MAX_ROUNDING,
            COLLECTION,
            LARGE_SEGMENT,
            Setting { key: "compact", values: &["0.01", "0.02", "0.05", "0.1", "0.2"] },
            Setting { key: "exact_segments", values: &["True"] },
            Setting { key: "parity", values: &["False"] },
        ],
    },
    PolicySpace {
        policy: "stitched",
        settings: &[
            Setting { key: "slack", values: &["0", "0.005", "0.03", "0.05", "0.1", "0.2"] },
            Setting { key: "max_stall_us", values: &["500", "1000", "5000", "20000"] },
        ],
    },
    PolicySpace {
        policy: "bfc",
        settings: &[
            EXPANDABLE,
            Setting { key: "first_region_mb", values: &["4", "16", "64", "256"] },
            Setting { key: "max_internal_fragmentation_mb", values: &["0", "16", "32", "64", "256"] },
        ],
    },
    PolicySpace {
        policy: "slab",
        settings: &[LARGE_SEGMENT, Setting { key: "largest_object_kb", values: &["64", "128", "256"] }],
    },
    PolicySpace { policy: "buddy", settings: &[Setting { key: "arena_mb", values: &["16", "32", "128", "256"] }] },
    PolicySpace {
        policy: "size_class",
        settings: &[Setting { key: "chunk_mb", values: &["64", "128", "256", "512", "2048"] }],
    },
];

/// Iterates over the policies for which [`CACHALOT`] has no settings, and which are worth a trial
/// with their defaults.
fn unlisted(policies: Policies) -> impl Iterator<Item = &'static str> {
    let is_worth = move |policy: &str| policies.named(policy).is_some_and(|policy| policy.traits().caches);
    let is_listed = |policy: &str| CACHALOT.iter().any(|space| space.policy == policy);
    policies.names().filter(move |&policy| is_worth(policy) && !is_listed(policy))
}

/// The settings that are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Realm {
    /// The settings of `PyTorch`'s own allocator.
    Torch,
    /// Every policy of cachalot, with its settings.
    All,
    /// The settings of cachalot's caching policy that may change while an allocator lives.
    Living,
}

/// The space of possible recommendations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The settings that are searched.
    pub realm: Realm,
    /// The policies besides the core's own. A policy that is neither one of these nor one of the
    /// core's is left out.
    pub policies: Policies,
    /// Whether some program has a memory limit. Garbage collection has no effect without a limit.
    pub has_limit: bool,
    /// Whether the device has virtual memory, which expandable segments need.
    pub has_virtual_memory: bool,
    /// Whether the settings of `PyTorch` 2.11 are searched for `PyTorch`'s own allocator.
    pub has_late_keys: bool,
}

/// A policy with values for some of its settings. A setting with its default value is left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    policy: &'static str,
    /// The keys with their values, in the order of the space.
    settings: Vec<(&'static str, &'static str)>,
}

/// The policy of `PyTorch`, and of cachalot if `policy:` is not given.
const DEFAULT_POLICY: &str = "caching";

impl Candidate {
    /// Creates a candidate with the defaults of a policy.
    const fn defaults(policy: &'static str) -> Self {
        Self { policy, settings: Vec::new() }
    }

    /// Returns the configuration string. The default policy is left out.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.policy != DEFAULT_POLICY {
            let _ = write!(text, "policy:{}", self.policy);
        }
        for (key, value) in &self.settings {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{comma}{key}:{value}");
        }
        text
    }

    /// Returns the configuration, or `None` if the values are not compatible. The policy may be one
    /// of `policies`.
    pub fn config(&self, policies: Policies) -> Option<Config> {
        Config::parse_with(policies, &self.text()).ok()
    }

    /// Returns `base` with the candidate's settings in place of all settings that can be searched.
    /// Returns `None` if the values are not compatible.
    pub fn over(&self, base: &Config) -> Option<Config> {
        let own = self.config(Policies::NONE)?;
        let mut config = base.clone();
        config.take_placement(&own);
        Some(config)
    }

    /// Returns the number of settings, including the policy.
    pub fn count(&self) -> usize {
        self.settings.len() + usize::from(self.policy != DEFAULT_POLICY)
    }

    /// Returns the first version of `PyTorch` that takes the candidate, because earlier ones stop
    /// at an unknown key. Returns `None` if every supported version takes it.
    pub fn needs_pytorch(&self) -> Option<&'static str> {
        let has = |key: &str| self.settings.iter().any(|(known, _)| *known == key);
        match () {
            () if has(LARGE_SEGMENT.key) => Some("2.11"),
            () if has(MAX_ROUNDING.key) => Some("2.6"),
            () => None,
        }
    }

    /// Returns whether `PyTorch`'s own allocator understands the candidate.
    pub(crate) fn is_of_torch(&self) -> bool {
        let known = |key: &str| TORCH.settings.iter().any(|setting| setting.key == key);
        self.policy == DEFAULT_POLICY && self.settings.iter().all(|(key, _)| known(key))
    }

    /// Iterates over the candidate without one of its settings, for each of them.
    pub(crate) fn simpler(&self) -> impl Iterator<Item = Self> {
        (0..self.settings.len()).map(|at| {
            let mut simpler = self.clone();
            simpler.settings.remove(at);
            simpler
        })
    }

    /// Returns the candidate without the setting with a key.
    pub(crate) fn without(&self, key: &str) -> Self {
        let settings = self.settings.iter().copied().filter(|(known, _)| *known != key);
        Self { policy: self.policy, settings: settings.collect() }
    }

    /// Returns the candidate with one more setting.
    pub(crate) fn with(mut self, key: &'static str, value: &'static str) -> Self {
        self.settings.push((key, value));
        self
    }
}

impl Space {
    fn policies(self) -> &'static [PolicySpace] {
        match self.realm {
            Realm::Torch => std::slice::from_ref(&TORCH),
            Realm::All => &CACHALOT,
            Realm::Living => &CACHALOT[..1],
        }
    }

    fn settings(self, policy: &str) -> impl Iterator<Item = &'static Setting> {
        let settings =
            self.policies().iter().find(|space| space.policy == policy).map_or(&[][..], |space| space.settings);
        settings.iter().filter(move |setting| self.has(setting.key))
    }

    /// Returns whether a setting of the realm can have an effect.
    fn has(self, key: &str) -> bool {
        let is_known = !self.is_torch() || self.has_late_keys || key != LARGE_SEGMENT.key;
        is_known && (self.has_limit || key != COLLECTION.key) && (self.has_virtual_memory || key != EXPANDABLE.key)
    }

    /// Returns whether only `PyTorch`'s own settings are searched.
    pub(crate) fn is_torch(self) -> bool {
        self.realm == Realm::Torch
    }

    /// Returns the fixed first candidates of every search: the defaults of every policy, and the
    /// settings that most often save something.
    pub fn first(self) -> Vec<Candidate> {
        let caching = || Candidate::defaults(DEFAULT_POLICY);
        let mut first = vec![
            caching(),
            caching().with(EXPANDABLE.key, "True"),
            caching().with(DIVISIONS.key, "8"),
            caching().with(DIVISIONS.key, "2"),
            caching().with(MAX_SPLIT.key, "128"),
            caching().with(MAX_SPLIT.key, "512"),
            caching().with(LARGE_SEGMENT.key, "64"),
            caching().with(EXPANDABLE.key, "True").with(LARGE_SEGMENT.key, "12"),
        ];
        if self.has_limit {
            first.push(caching().with(COLLECTION.key, "0.8"));
        }
        if self.realm == Realm::All {
            let others = CACHALOT.iter().map(|space| space.policy).filter(|&policy| policy != DEFAULT_POLICY);
            let known = others.chain(unlisted(self.policies)).filter(|policy| self.policies.named(policy).is_some());
            first.extend(known.map(Candidate::defaults));
            first.push(Candidate::defaults("bfc").with(EXPANDABLE.key, "True"));
        }
        if !self.is_torch() {
            first.push(caching().with("compact", "0.05"));
            first.push(caching().with("exact_segments", "True"));
            first.push(caching().with("parity", "False"));
            first.push(caching().with(EXPANDABLE.key, "True").with("parity", "False"));
        }
        first.retain(|candidate| candidate.settings.iter().all(|&(key, _)| self.has(key)));
        first
    }

    /// Returns a neighbour of the parents. It has settings of both if they share a policy, and then
    /// one or two changed settings.
    pub(crate) fn propose(self, one: &Candidate, other: &Candidate, random: &mut Rng) -> Candidate {
        let mut child = one.clone();
        if one.policy == other.policy {
            for setting in self.settings(one.policy) {
                let parent = if random.bool() { one } else { other };
                self.set(&mut child, setting.key, value_of(parent, setting.key));
            }
        }
        for _ in 0..random.usize(1..=2) {
            let settings: Vec<&Setting> = self.settings(child.policy).collect();
            // A policy may have no settings to search.
            let Some(setting) = random.choice(settings) else { break };
            // This is one of the values, or the default.
            let value = setting.values.get(random.usize(0..=setting.values.len())).copied();
            self.set(&mut child, setting.key, value);
        }
        child
    }

    /// Sets a setting of a candidate to a value, or to the default.
    fn set(self, candidate: &mut Candidate, key: &'static str, value: Option<&'static str>) {
        let wanted = |known: &'static str| if known == key { value } else { value_of(candidate, known) };
        let settings = self.settings(candidate.policy).filter_map(|one| Some((one.key, wanted(one.key)?)));
        candidate.settings = settings.collect();
    }
}

fn value_of(candidate: &Candidate, key: &str) -> Option<&'static str> {
    candidate.settings.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_policies::POLICIES;

    #[test]
    fn every_value_of_every_setting_is_a_configuration() {
        for spaces in [std::slice::from_ref(&TORCH), &CACHALOT] {
            for space in spaces {
                for setting in space.settings {
                    for value in setting.values {
                        let candidate = Candidate::defaults(space.policy).with(setting.key, value);
                        assert!(candidate.config(POLICIES).is_some(), "{}", candidate.text());
                    }
                }
            }
        }
    }

    #[test]
    fn only_known_settings_are_pytorchs() {
        let torch = Space {
            realm: Realm::Torch,
            policies: POLICIES,
            has_limit: true,
            has_virtual_memory: true,
            has_late_keys: true,
        };
        assert!(torch.first().iter().all(Candidate::is_of_torch));
        let mut random = Rng::with_seed(1);
        let parents = torch.first();
        for round in 0..200 {
            let child = torch.propose(&parents[round % parents.len()], &parents[1], &mut random);
            assert!(child.is_of_torch(), "{}", child.text());
        }
        let others = Space { realm: Realm::All, ..torch }.first().into_iter().filter(|one| !one.is_of_torch());
        assert!(others.count() >= 9);
        let policies = Policies::NONE;
        let core = Space { realm: Realm::All, policies, ..torch }.first();
        assert!(core.iter().all(|one| one.config(policies).is_some()), "no policy that the program does not have");
    }

    #[test]
    fn without_a_limit_nothing_is_collected() {
        let space = Space {
            realm: Realm::Torch,
            policies: POLICIES,
            has_limit: false,
            has_virtual_memory: true,
            has_late_keys: true,
        };
        let (parents, mut random) = (space.first(), Rng::with_seed(7));
        let children = (0..300).map(|at| space.propose(&parents[at % 3], &parents[(at + 1) % 3], &mut random));
        assert!(children.chain(space.first()).all(|one| !one.text().contains(COLLECTION.key)));
    }

    #[test]
    fn a_living_allocator_keeps_its_policy_and_its_other_settings() {
        let space = Space {
            realm: Realm::Living,
            policies: POLICIES,
            has_limit: false,
            has_virtual_memory: false,
            has_late_keys: true,
        };
        let (parents, mut random) = (space.first(), Rng::with_seed(3));
        let base = Config::parse("per_process_memory_fraction:0.5,max_split_size_mb:64,large_segment_size_mb:32");
        let base = base.expect("a configuration");
        for at in 0..200 {
            let child = space.propose(&parents[at % parents.len()], &parents[at % 3], &mut random);
            let Some(config) = child.over(&base) else { continue };
            assert_eq!(config.policy(), base.policy());
            assert!(!config.expandable_segments(), "{}", child.text());
            assert!((config.per_process_memory_fraction() - 0.5).abs() < 1e-9);
            let own = child.config(POLICIES).expect("a configuration");
            assert_eq!(config.max_split_size(), own.max_split_size());
        }
        assert_eq!(parents[0].over(&base).expect("defaults").large_segment_size(), 20 << 20);
    }

    #[test]
    fn a_text_leaves_out_the_default_policy() {
        let caching = Candidate::defaults("caching").with("max_split_size_mb", "64").with("compact", "0.05");
        assert_eq!((caching.text().as_str(), caching.count()), ("max_split_size_mb:64,compact:0.05", 2));
        let simpler: Vec<String> = caching.simpler().map(|one| one.text()).collect();
        assert_eq!(simpler, ["compact:0.05", "max_split_size_mb:64"]);
        let slab = Candidate::defaults("slab").with("largest_object_kb", "64");
        assert_eq!((slab.text().as_str(), slab.count()), ("policy:slab,largest_object_kb:64", 2));
        assert_eq!(Candidate::defaults("caching").text(), "");
    }
}
