//! `call-split`: the cost of splitting a receive function in two.

mod compile;
mod rust;

use std::collections::BTreeMap;
use std::process::Command;

use super::experiment::{Child, Experiment, Slice};
use super::small_path::{self, Agreement};
use super::{Options, Plan, Size, Spec, Study, alone};
use crate::frames::Template;
use compile::BuildDir;
use rust::{Frame, SmallPath, VARIANTS};

pub(super) const STUDY: Study = Study {
    name: "call-split",
    question: "what does it cost a packet to split the receive function in two?",
    by_difference: true,
    plan,
    open,
    extra: None,
};

/// Frames of each sort.
const FRAMES: usize = 1024;

/// Passes of each variant in a slice.
const PASSES: usize = 48;

/// Kinds of traffic, with the UDP port that selects each.
const TRAFFIC: [(&str, u16); 2] = [("forward", 53), ("drop", 7)];

/// The published figures: not inlined and inlined, for forwarding and early drop.
const PUBLISHED: [[&str; 2]; 2] =
    [["+25.18 ns", "+7.55 ns"], ["-10.05 ns", "-1.54 ns, below accuracy"]];

fn frames() -> Vec<Vec<Template>> {
    TRAFFIC.iter().map(|(_, port)| small_path::templates(FRAMES, &[], *port)).collect()
}

fn plan(study: &Study, options: &Options) -> Result<Plan, String> {
    let (settings, notes) = compile::settings();
    let bytes: Vec<u8> = frames().into_iter().flatten().flatten().collect();
    let build_dir = BuildDir::new(&bytes)?;
    for setting in &settings {
        build_dir.compile(setting)?;
    }
    let mut specs = Vec::new();
    for setting in &settings {
        specs.extend(rows(&setting.name, &setting.title));
    }
    specs.extend(rows("rustc", "this program's own build"));
    let mut own = alone(study, options);
    let ns = small_path::ns_per_clock().to_string();
    let experiments = move |number| {
        let mut experiments = own(number)?;
        for setting in &settings {
            let program = build_dir.link(setting, number)?;
            let mut command = Command::new(program);
            command.arg(&setting.name).arg(&ns).arg(build_dir.path("frames"));
            experiments.push(Box::new(Child::start(command, setting.name.clone())?));
        }
        Ok(experiments)
    };
    Ok(Plan { specs, notes, experiments: Box::new(experiments) })
}

/// The rows of one build.
fn rows(name: &str, title: &str) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (sent, (traffic, _)) in TRAFFIC.iter().enumerate() {
        let group = format!("{traffic}, {name}: {title}");
        let row = |variant: &str| format!("{name}-{variant}-{traffic}");
        let spec = |variant, label| Spec::new(&group, row(variant), label);
        specs.push(spec("whole", "one function"));
        let split = [("call", "in two, called"), ("inline", "in two, inlined")];
        for ((variant, label), published) in split.into_iter().zip(PUBLISHED) {
            specs.push(spec(variant, label).against(row("whole"), Some(published[sent])));
        }
    }
    specs
}

/// The function in Rust.
struct Rust {
    small_path: SmallPath,
    templates: Vec<Vec<Template>>,
    frames: Vec<Frame>,
    passes: usize,
    ns_per_clock: f64,
    agreement: Agreement,
}

fn open(size: Size) -> Result<Box<dyn Experiment>, String> {
    Ok(Box::new(Rust {
        small_path: SmallPath::new(),
        templates: frames(),
        frames: Vec::with_capacity(FRAMES),
        passes: if size == Size::Full { PASSES } else { 2 },
        ns_per_clock: small_path::ns_per_clock(),
        agreement: Agreement::default(),
    }))
}

impl Experiment for Rust {
    fn slice(&mut self) -> Result<Slice, String> {
        let mut agreed = Ok(());
        let taken = small_path::in_turn(VARIANTS.len() * TRAFFIC.len(), self.passes, |at| {
            let (variant, traffic) = (at % VARIANTS.len(), at / VARIANTS.len());
            let (name, receive) = VARIANTS[variant];
            self.frames.clear();
            self.frames.extend(self.templates[traffic].iter().copied().map(Frame::new));
            let clocks =
                small_path::clocks(|| rust::run(receive, &mut self.small_path, &mut self.frames));
            if agreed.is_ok() {
                let digest = rust::digest(&self.frames);
                agreed = self.agreement.take(TRAFFIC[traffic].0, name, digest);
            }
            clocks
        });
        agreed?;
        let mut rows = BTreeMap::new();
        for (at, clocks) in taken.into_iter().enumerate() {
            let (name, _) = VARIANTS[at % VARIANTS.len()];
            let (traffic, _) = TRAFFIC[at / VARIANTS.len()];
            let ns = clocks * self.ns_per_clock / FRAMES as f64;
            rows.insert(format!("rustc-{name}-{traffic}"), ns);
        }
        Ok(Slice { rows, digests: self.agreement.clone(), ..Slice::default() })
    }
}
