//! What the kernels of both twins say of their connections: the events of each one, and the list at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::namespaces::{Process, until};
use crate::scene::{ALONE, Twin, Version, WITH};
use crate::script::is_named;

/// How long the twins have to agree: Tollway tells the kernel the timeout of a quiet connection after one to two seconds.
const PATIENCE: Duration = Duration::from_secs(8);
/// Timeouts may differ by so much.
const SECONDS: u64 = 2;

/// A connection, as a line of conntrack(8) has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Protocol and tuples; `*` stands for a port, or the identifier of an echo, that the kernel has chosen.
    original: String,
    reply: String,
    /// Of TCP.
    state: String,
    timeout_s: Option<u64>,
    is_replied: bool,
    is_assured: bool,
    mark: String,
    is_by_user: bool,
}

impl Entry {
    /// Reads a line of this family; none for others.
    fn read(line: &str, version: Version) -> Option<Self> {
        let has = |word| line.contains(word);
        let words: Vec<_> = line.split_whitespace().skip_while(|word| !is_protocol(word)).collect();
        let protocol = words.first()?;
        let (mut tuples, mut mark, mut first) = (Vec::<String>::new(), "0", "");
        for (name, value) in words.iter().filter_map(|word| word.split_once('=')) {
            match name {
                "src" if value.contains(':') != (version == Version::V6) => return None,
                "src" => tuples.push(format!("{protocol} {value}")),
                "dst" | "type" | "code" => *tuples.last_mut()? += &format!(" {value}"),
                "sport" | "dport" | "id" => {
                    if tuples.len() == 1 && name != "dport" {
                        first = value;
                    }
                    let is_chosen = tuples.len() == 2 && name != "sport" && value != first;
                    let is_named = value.parse().is_ok_and(is_named) && !is_chosen;
                    *tuples.last_mut()? += &format!(":{}", if is_named { value } else { "*" });
                }
                "mark" => mark = value,
                _ => {}
            }
        }
        let [original, reply] = <[String; 2]>::try_from(tuples).ok()?;
        let state = words.iter().find(|word| word.len() > 3 && is_state(word));
        Some(Self {
            original,
            reply,
            state: state.map_or_else(String::new, |state| (*state).to_owned()),
            timeout_s: words.get(2).and_then(|word| word.parse().ok()),
            is_replied: !has("[UNREPLIED]"),
            is_assured: has("[ASSURED]"),
            mark: mark.to_owned(),
            is_by_user: has("[USERSPACE]"),
        })
    }
}

fn is_protocol(word: &str) -> bool {
    ["tcp", "udp", "icmp", "icmpv6"].contains(&word)
}

fn is_state(word: &str) -> bool {
    word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_' || letter == '2')
}

/// Follows the events of a router.
pub struct Events {
    file: NamedTempFile,
    _process: Process,
    version: Version,
}

impl Events {
    pub fn follow(twin: &Twin) -> Self {
        let file = NamedTempFile::new().unwrap();
        let output = File::create(file.path()).unwrap();
        let mut command = twin.command("conntrack -E -b 8000000");
        let process = command.stdout(output).stderr(Stdio::null()).spawn().unwrap();
        let events = Self { file, _process: Process(process), version: twin.version };
        // It listens once it reports this one.
        until("events of connections", || {
            twin.sh(
                "conntrack -I -p icmp -s 192.0.2.1 -d 192.0.2.2 -t 9 --icmp-type 8 --icmp-code 0 \
                     --icmp-id 1",
            );
            twin.sh("conntrack -F");
            !std::fs::read_to_string(events.file.path()).unwrap().is_empty()
        });
        events
    }

    /// What happened to the connections of each tuple, one after the other.
    fn read(&self) -> BTreeMap<String, Vec<Vec<String>>> {
        let text = std::fs::read_to_string(self.file.path()).unwrap();
        let mut all: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
        for line in text.lines() {
            let Some(entry) = Entry::read(line, self.version) else { continue };
            if entry.original.contains("192.0.2.1") {
                continue;
            }
            let of = all.entry(entry.original.clone()).or_default();
            // A later connection may have the number of an earlier one.
            if of.is_empty() || line.contains("[NEW]") {
                of.push(Vec::new());
            }
            let seen = of.last_mut().unwrap();
            let mut note = |event: String| {
                if !seen.contains(&event) {
                    seen.push(event);
                }
            };
            if line.contains("[NEW]") {
                note(format!("NEW for {}", entry.reply));
            } else if line.contains("[DESTROY]") {
                note("DESTROY".to_owned());
            } else if !entry.is_by_user {
                if entry.is_replied {
                    note("REPLIED".to_owned());
                }
                if entry.is_assured {
                    note("ASSURED".to_owned());
                }
            }
        }
        all
    }
}

/// The connections of a router, by their original tuples.
fn list(twin: &Twin) -> BTreeMap<String, Entry> {
    let text = twin.sh("conntrack -L");
    let entries = text.lines().filter_map(|line| Entry::read(line, twin.version));
    entries.map(|entry| (entry.original.clone(), entry)).collect()
}

/// How two lists differ, line by line.
fn differences(alone: &BTreeMap<String, Entry>, with: &BTreeMap<String, Entry>) -> Vec<String> {
    let mut all = Vec::new();
    let tuples = alone.keys().chain(with.keys().filter(|tuple| !alone.contains_key(*tuple)));
    for tuple in tuples {
        let is_same = match (alone.get(tuple), with.get(tuple)) {
            (Some(one), Some(other)) => {
                let near = |one: Option<u64>, other: Option<u64>| {
                    one.unwrap_or(0).abs_diff(other.unwrap_or(0)) <= SECONDS
                };
                near(one.timeout_s, other.timeout_s)
                    && Entry { timeout_s: None, ..one.clone() }
                        == Entry { timeout_s: None, ..other.clone() }
            }
            // It is about to end.
            (Some(one), None) | (None, Some(one)) => {
                one.timeout_s.is_some_and(|left| left <= SECONDS)
            }
            (None, None) => true,
        };
        if !is_same {
            all.push(format!("{:?}\nand with Tollway {:?}", alone.get(tuple), with.get(tuple)));
        }
    }
    all
}

/// Waits until both kernels have the same connections and the same events. Returns how they differ, and how many
/// connections there have been. Of connections that `begin_only` names, only the beginning is the same.
pub fn compare(
    twins: &[Twin; 2],
    events: &[Events; 2],
    begin_only: impl Fn(&str) -> bool,
) -> Result<usize, Vec<String>> {
    let start = Instant::now();
    loop {
        // What has expired ends when somebody lists it.
        let mut lists = [ALONE, WITH].map(|twin| list(&twins[twin]));
        lists.iter_mut().for_each(|list| list.retain(|tuple, _| !begin_only(tuple)));
        let mut differ = differences(&lists[ALONE], &lists[WITH]);
        let mut seen = [ALONE, WITH].map(|twin| events[twin].read());
        for (tuple, of) in seen.iter_mut().flatten() {
            if begin_only(tuple) {
                of.truncate(1);
                of[0].retain(|event| event != "DESTROY");
            }
        }
        let tuples = seen[ALONE].keys().chain(seen[WITH].keys());
        let mut tuples: Vec<_> = tuples.collect();
        tuples.sort();
        tuples.dedup();
        for tuple in &tuples {
            let [one, other] = [ALONE, WITH].map(|twin| seen[twin].get(*tuple));
            if one != other {
                differ.push(format!("events of {tuple}: {one:?}\nand with Tollway {other:?}"));
            }
        }
        if differ.is_empty() {
            return Ok(tuples.len());
        }
        if start.elapsed() > PATIENCE {
            return Err(differ);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// How many packets a kernel has found invalid (`conntrack -S`).
pub fn invalid(twin: &Twin) -> u64 {
    let text = twin.sh("conntrack -S");
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix("invalid="));
    words.map(|count| count.parse::<u64>().unwrap()).sum()
}
