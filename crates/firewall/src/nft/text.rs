//! Writes a rule in nft's own syntax, from its JSON.

mod phrase;
mod statement;

use serde_json::Value;

use super::json::{several, text};

/// A rule in nft's syntax, on one line.
pub(super) fn rule(rule: &Value) -> String {
    let statements = rule.get("expr").map(several).unwrap_or_default();
    let mut words: Vec<_> = statements.iter().map(statement::statement).collect();
    let comment = text(rule, "comment");
    if !comment.is_empty() {
        words.push(format!("comment {}", phrase::quoted(comment)));
    }
    words.join(" ")
}
