//! Recorded runs of the table: a file each, named by time and measured commit.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Tolls;
use crate::machine::Machine;

/// The format version of the file.
const FORM: u32 = 1;

/// The default directory of records.
pub const DIRECTORY: &str = "toll-records";

/// The content of a file: the run and its time.
#[derive(Serialize)]
struct Written<'a> {
    toll_record: u32,
    recorded: &'a str,
    #[serde(flatten)]
    tolls: &'a Tolls,
}

/// A record as read from a file.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    /// When it was recorded, UTC.
    pub recorded: String,
    /// The machine it ran on.
    pub machine: Machine,
    /// The compiler of its build.
    pub compiler: String,
    /// The commit of its build.
    pub commit: String,
    /// Number of runnable processes meanwhile.
    #[serde(default)]
    pub load_average: Option<f64>,
    /// The measured rows.
    pub rows: Vec<Recorded>,
}

/// A row of a record.
#[derive(Clone, Debug, Deserialize)]
pub struct Recorded {
    /// Its name.
    pub name: String,
    /// The result of every round, ns per packet.
    pub rounds_ns: Vec<f64>,
}

/// Writes a run to a directory, which it creates if necessary. Returns the file's path.
///
/// # Errors
/// A message, if the file cannot be written.
pub fn keep(tolls: &Tolls, directory: &Path) -> Result<PathBuf, String> {
    keep_at(tolls, directory, SystemTime::now())
}

fn keep_at(tolls: &Tolls, directory: &Path, now: SystemTime) -> Result<PathBuf, String> {
    fs::create_dir_all(directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let recorded = date(seconds);
    let written = Written { toll_record: FORM, recorded: &recorded, tolls };
    let text = serde_json::to_string_pretty(&written).map_err(|error| error.to_string())?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let commit: String = tolls.report.commit.chars().map(plain).collect();
    let name = format!("tolls-{}-{commit}", recorded.replace(':', ""));
    // Two runs within one second must both be kept.
    for number in 0..100 {
        let more = if number > 0 { format!("-{number}") } else { String::new() };
        let path = directory.join(format!("{name}{more}.json"));
        let failed = |error| format!("cannot write {}: {error}", path.display());
        match File::create_new(&path) {
            Ok(mut file) => {
                file.write_all(text.as_bytes()).map_err(failed)?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(format!("{} has a hundred records of one second", directory.display()))
}

/// Reads a record.
///
/// # Errors
/// A message, if the file cannot be read or is not a record.
pub fn read(path: &Path) -> Result<Record, String> {
    let wrong = |reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| wrong(&format_args!("no JSON: {error}")))?;
    let form = json.get("toll_record").and_then(serde_json::Value::as_u64);
    match form {
        Some(form) if form == u64::from(FORM) => {}
        Some(form) => {
            return Err(wrong(&format_args!(
                "a record of form {form}, and this build reads form {FORM}"
            )));
        }
        None => return Err(wrong(&"no record of `tollway lab tolls`: it has no toll_record")),
    }
    let record: Record = serde_json::from_value(json)
        .map_err(|error| wrong(&format_args!("a record that is damaged: {error}")))?;
    let usable = |row: &&Recorded| row.rounds_ns.iter().all(|ns| ns.is_finite() && *ns >= 0.0);
    match record.rows.iter().find(|row| row.rounds_ns.is_empty() || !usable(row)) {
        Some(row) => {
            Err(wrong(&format_args!("a record that is damaged: {} has no times", row.name)))
        }
        None => Ok(record),
    }
}

/// Seconds since 1970 as a date, UTC (RFC 3339).
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years start in March, in eras of 400 years (Hinnant, "chrono-compatible low-level date
    // algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        10.. => (era * 400 + year + 1, month - 9),
        _ => (era * 400 + year, month + 3),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tolls::tests::{directory, made};

    /// The output of `date -u -d @N +%FT%TZ`.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_199_974, "2026-11-20T18:39:34Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn two_records_of_one_second_are_both_kept() {
        let directory = directory("twice");
        let tolls = made(&[("ip4-one-flow", 10.0)]);
        let now = UNIX_EPOCH + std::time::Duration::from_secs(1_795_199_974);
        let [first, second] = [(); 2].map(|()| keep_at(&tolls, &directory, now).unwrap());
        assert_ne!(first, second);
        let name = first.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("tolls-2026-11-20T183934Z-"), "{name}");
        assert_eq!(read(&first).unwrap().recorded, "2026-11-20T18:39:34Z");
        assert_eq!(read(&second).unwrap().rows[0].name, "ip4-one-flow");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn files_without_a_record_are_refused_by_name() {
        let directory = directory("refused");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("x.json");
        for (text, reason) in [
            ("", "no JSON"),
            ("{\"rows\":[]}", "no record of `tollway lab tolls`"),
            ("{\"toll_record\":2}", "a record of form 2, and this build reads form 1"),
            ("{\"toll_record\":1}", "a record that is damaged: missing field"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(
                error.starts_with(&path.display().to_string()) && error.contains(reason),
                "{error}"
            );
        }
        let whole = keep(&made(&[("ip4-one-flow", 10.0)]), &directory).unwrap();
        let text = fs::read_to_string(&whole).unwrap();
        let (head, tail) = text.split_once("\"rounds_ns\": [").unwrap();
        let (_, tail) = tail.split_once(']').unwrap();
        fs::write(&path, format!("{head}\"rounds_ns\": []{tail}")).unwrap();
        assert!(read(&path).unwrap_err().contains("ip4-one-flow has no times"));
        assert!(read(&directory.join("none.json")).unwrap_err().contains("No such file"));
        let below = keep(&made(&[]), &path).unwrap_err();
        assert!(below.contains("cannot create"), "{below}");
        fs::remove_dir_all(directory).unwrap();
    }
}
