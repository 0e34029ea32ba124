//! Modules of iptables that concern the packet's connection.

use serde_json::Value;

use super::MEANING;
use super::json::{inner, only, several};
use super::refusal::refusal;
use super::rule::Rule;
use crate::ir::{Action, Match, Step};

impl Rule<'_, '_> {
    /// Adds the step of a module that says what it means, see [`MEANING`].
    pub(super) fn module(&mut self, module: &Value) -> Result<(), String> {
        self.note_connection(refusal("xt", module));
        let unknown = || refusal("xt", module);
        match module.get(MEANING).and_then(only) {
            Some(("mangle", mangle)) => self.mangle(mangle),
            Some(("notrack", _)) => {
                self.steps.push(Step::Do(Action::NoTrack));
                Ok(())
            }
            Some(("any", alternatives)) => {
                let alternatives = several(alternatives).iter();
                let any = alternatives.map(|all| self.all_of(several(all)));
                let any = any.collect::<Option<Vec<_>>>().ok_or_else(unknown)?;
                self.steps.push(Step::Any(any));
                Ok(())
            }
            _ => Err(unknown()),
        }
    }

    /// Conditions that all have to hold; `None` if one is something else.
    fn all_of(&mut self, conditions: &[Value]) -> Option<Vec<Match>> {
        let before = self.steps.len();
        for condition in conditions {
            self.relation(inner(condition, "match")?).ok()?;
        }
        let steps = self.steps.split_off(before).into_iter();
        let matches = steps.map(|step| match step {
            Step::Match(one) => Some(one),
            _ => None,
        });
        matches.collect()
    }
}
