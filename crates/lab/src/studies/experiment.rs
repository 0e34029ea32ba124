//! Experiments that measure a study's rows, in this process or in a child.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::small_path::Agreement;
pub(super) use crate::child::Child;

/// How long a slice may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// One measurement of every row, taken in turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Slice {
    /// Nanoseconds per packet, by row.
    pub(super) rows: BTreeMap<String, f64>,
    /// Other figures.
    #[serde(default)]
    pub(super) counts: BTreeMap<String, f64>,
    /// Digests of the resulting packets, by traffic. They are equal for all experiments, or these
    /// did not do the same work.
    #[serde(default)]
    pub(super) digests: Agreement,
}

impl Slice {
    /// Adds what another experiment measured in the same observation.
    ///
    /// # Errors
    /// A message, if its resulting packets differ.
    pub(super) fn join(&mut self, other: Self) -> Result<(), String> {
        self.digests.join(&other.digests)?;
        self.rows.extend(other.rows);
        self.counts.extend(other.counts);
        Ok(())
    }
}

/// An experiment that measures rows.
pub(super) trait Experiment {
    /// Measures each of its rows once, in turn.
    ///
    /// # Errors
    /// A message, if that fails or variants differ in their results.
    fn slice(&mut self) -> Result<Slice, String>;
}

impl Experiment for Child {
    fn slice(&mut self) -> Result<Slice, String> {
        self.request(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::serve;

    struct Count(u64);

    impl Experiment for Count {
        fn slice(&mut self) -> Result<Slice, String> {
            self.0 += 1;
            let mut slice = Slice::default();
            slice.rows.insert("row".to_owned(), self.0 as f64);
            slice.digests.take("packets", "row", u64::MAX)?;
            Ok(slice)
        }
    }

    #[test]
    fn a_slice_can_be_read_back() {
        let mut output = Vec::new();
        let mut count = Count(0);
        serve(&b"\n\n"[..], &mut output, |_| count.slice()).unwrap();
        let text = String::from_utf8(output).unwrap();
        let slices: Vec<Slice> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(slices.iter().map(|slice| slice.rows["row"]).collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!(slices[0].digests, Count(0).slice().unwrap().digests);
        assert!(text.contains(r#""digests":{"packets":18446744073709551615}"#), "{text}");
    }

    #[test]
    fn slices_with_other_digests_do_not_join() {
        let mut slice = Count(0).slice().unwrap();
        let mut other = Count(0).slice().unwrap();
        slice.join(other.clone()).unwrap();
        other.digests = Agreement::default();
        other.digests.take("packets", "row", 1).unwrap();
        assert!(slice.join(other).unwrap_err().contains("packets"));
    }
}
