//! The fault plan: a list of rules for failing or slow calls.
//!
//! A plan is a JSON list of rules. Each rule names a function (`"*"` for any) and selects calls of
//! the function: the calls from the `nth` on (from 1, counted since the plan was set), or `percent`
//! of all calls. A rule hits `count` calls (1 by default), or every call with `"persistent": true`.
//! A hit call answers `code` after `delay_us`. With `"when": "before"` (the default) the call does
//! not act, with `"after"` the call has acted. Without a code the call is only slow.

use crate::values::code::Code;
use crate::values::functions::Function;
use crate::values::random::Random;
use serde_json::Value;

/// The moment at which a rule applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Before,
    After,
}

/// The calls selected by a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    /// All calls from the given number on, until the rule is spent.
    From(u64),
    /// Each call with the given probability.
    Percent(u64),
}

/// A rule of the plan.
#[derive(Clone, Debug)]
struct Rule {
    /// The function; `None` for any.
    function: Option<Function>,
    which: Which,
    /// Number of hits left. `None` for no limit.
    left: Option<u64>,
    code: Option<Code>,
    delay_us: u64,
    when: When,
    /// Matching calls so far.
    seen: u64,
}

/// The effect of the plan on a call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Verdict {
    /// Microseconds of delay before the call acts.
    pub(crate) delay_before_us: u64,
    /// Code answered instead of acting.
    pub(crate) before: Option<Code>,
    /// Code answered although the call acted.
    pub(crate) after: Option<Code>,
    /// Microseconds of delay after the call acted.
    pub(crate) delay_after_us: u64,
}

/// The active rules.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    rules: Vec<Rule>,
    fired: u64,
}

impl Plan {
    /// Adds the rules of a JSON list, or of one JSON object.
    ///
    /// # Errors
    /// A description of the mistake. No rule is added.
    pub(crate) fn add(&mut self, json: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(json).map_err(|why| why.to_string())?;
        let rules = match value {
            Value::Array(rules) => rules.iter().map(Rule::parse).collect::<Result<Vec<_>, _>>()?,
            rule => vec![Rule::parse(&rule)?],
        };
        self.rules.extend(rules);
        Ok(())
    }

    /// Removes every rule.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// Returns the number of calls hit so far.
    pub(crate) fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts a call and returns the effect of all rules. Codes of earlier rules win. Delays add
    /// up.
    pub(crate) fn judge(&mut self, function: Function, random: &mut Random) -> Verdict {
        let mut verdict = Verdict::default();
        let mut hit = false;
        for rule in &mut self.rules {
            if rule.function.is_none_or(|wanted| wanted == function) && rule.strikes(random) {
                hit = true;
                match rule.when {
                    When::Before => {
                        verdict.delay_before_us += rule.delay_us;
                        verdict.before = verdict.before.or(rule.code);
                    }
                    When::After => {
                        verdict.delay_after_us += rule.delay_us;
                        verdict.after = verdict.after.or(rule.code);
                    }
                }
            }
        }
        self.fired += u64::from(hit);
        verdict
    }
}

impl Rule {
    /// Reads a rule.
    fn parse(value: &Value) -> Result<Self, String> {
        const KNOWN: [&str; 8] = ["fn", "nth", "percent", "count", "persistent", "code", "delay_us", "when"];
        let object = value.as_object().ok_or("a rule is an object")?;
        if let Some(unknown) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(format!("a rule has no member {unknown:?}"));
        }
        let number = |key: &str| match object.get(key) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(format!("{key:?} is a whole number")),
        };
        let name = object.get("fn").and_then(Value::as_str).ok_or("a rule names its \"fn\"")?;
        let function = match name {
            "*" => None,
            name => Some(Function::named(name).ok_or(format!("no function {name:?}"))?),
        };
        let which = match (number("nth")?, number("percent")?) {
            (Some(_), Some(_)) => return Err("a rule has \"nth\" or \"percent\", not both".to_owned()),
            (None, Some(percent)) => Which::Percent(percent),
            (nth, None) => Which::From(nth.unwrap_or(1)),
        };
        let persistent = object.get("persistent").and_then(Value::as_bool).unwrap_or(false);
        let left = if persistent { None } else { Some(number("count")?.unwrap_or(1)) };
        let when = match object.get("when").and_then(Value::as_str).unwrap_or("before") {
            "before" => When::Before,
            "after" => When::After,
            other => return Err(format!("\"when\" is \"before\" or \"after\", not {other:?}")),
        };
        let code = number("code")?.map(|code| Code(code as u32));
        Ok(Self { function, which, left, code, delay_us: number("delay_us")?.unwrap_or(0), when, seen: 0 })
    }

    /// Counts a matching call. Returns whether the rule hits the call.
    fn strikes(&mut self, random: &mut Random) -> bool {
        self.seen += 1;
        let due = match self.which {
            Which::From(nth) => self.seen >= nth,
            Which::Percent(percent) => random.below(100) < percent,
        };
        match (&mut self.left, due) {
            (_, false) | (Some(0), true) => false,
            (Some(left), true) => {
                *left -= 1;
                true
            }
            (None, true) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Plan, Verdict};
    use crate::values::code::Code;
    use crate::values::functions::Function::{cuMemAlloc_v2, cuMemFree_v2};
    use crate::values::random::Random;

    fn befores(plan: &mut Plan, calls: usize) -> Vec<Option<u32>> {
        let mut random = Random::new(1);
        let mut judge = || plan.judge(cuMemAlloc_v2, &mut random).before.map(|code| code.0);
        (0..calls).map(|_| judge()).collect()
    }

    #[test]
    fn the_nth_call_fails_once_or_for_good() {
        let mut plan = Plan::default();
        assert_eq!(plan.add(r#"[{"fn":"cuMemAlloc_v2","nth":2,"code":2}]"#), Ok(()));
        assert_eq!(befores(&mut plan, 4), [None, Some(2), None, None]);
        plan.clear();
        assert_eq!(plan.add(r#"{"fn":"*","nth":2,"persistent":true,"code":2}"#), Ok(()));
        assert_eq!(befores(&mut plan, 4), [None, Some(2), Some(2), Some(2)]);
        assert_eq!(plan.fired(), 4);
    }

    #[test]
    fn a_rule_of_another_function_does_not_count() {
        let mut plan = Plan::default();
        assert_eq!(plan.add(r#"{"fn":"cuMemAlloc_v2","code":700,"when":"after","delay_us":5}"#), Ok(()));
        let mut random = Random::new(1);
        assert_eq!(plan.judge(cuMemFree_v2, &mut random), Verdict::default());
        let verdict = plan.judge(cuMemAlloc_v2, &mut random);
        assert_eq!((verdict.after, verdict.delay_after_us), (Some(Code(700)), 5));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_whole() {
        let mut plan = Plan::default();
        for bad in ["{", "[1]", r#"{"fn":"cuNothing"}"#, r#"{"fn":"*","when":"later"}"#, r#"{"fn":"*","cod":1}"#] {
            assert!(plan.add(bad).is_err(), "{bad}");
        }
        assert_eq!(befores(&mut plan, 1), [None]);
    }
}
