//! `[ports.NAME]`: sources and sinks of frames, each with the link for its untagged frames.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::links::{COMMON_KEYS, Draft, DraftKind, read_common};
use super::raw::{At, Section, Setting};
use super::values::{choice, device_name};
use super::vrfs::Vrfs;
use crate::{AfXdpMode, Choice, Engine, Port, PortIndex, PortKind};
use tollway_firewall::mistake::{Fault, Ledger, Span, quoted};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Capture,
    Tap,
    AfPacket,
    AfXdp,
}

const KINDS: [(&str, Kind); 5] = [
    ("memory", Kind::Memory),
    ("capture", Kind::Capture),
    ("tap", Kind::Tap),
    ("af_packet", Kind::AfPacket),
    ("af_xdp", Kind::AfXdp),
];

const MODES: [(&str, AfXdpMode); 4] = [
    ("auto", AfXdpMode::Auto),
    ("zero-copy", AfXdpMode::ZeroCopy),
    ("copy", AfXdpMode::Copy),
    ("generic", AfXdpMode::Generic),
];

const ENGINES: [(&str, Engine); 4] = [
    (Engine::Auto.name(), Engine::Auto),
    (Engine::Xdp.name(), Engine::Xdp),
    (Engine::Tc.name(), Engine::Tc),
    (Engine::User.name(), Engine::User),
];

/// Reads the ports, and starts the list of links with one link for each port.
pub(super) fn read<'a>(
    root: &Section<'a>,
    base: &Path,
    vrfs: &Vrfs,
    ledger: &mut Ledger<'_>,
) -> (Vec<Port>, Vec<Draft<'a>>) {
    let has_rules = root.key_span("filter").is_some();
    let mut reader = Reader { base, has_rules, taken: Taken::default() };
    let (mut ports, mut links) = (Vec::new(), Vec::new());
    for (name, section) in root.tables("ports", "port", ledger) {
        let kind = reader.read_kind(&name, &section, ledger);
        let link = DraftKind::Port(PortIndex(ports.len()));
        ports.push(Port { name: name.value.to_owned(), kind });
        links.push(read_common(name, link, &section, vrfs, ledger));
    }
    reader.taken.check(ledger);
    if ports.is_empty() && root.key_span("ports").is_none() {
        root.missing("ports", "add a [ports.NAME] table for each port", ledger);
    }
    (ports, links)
}

struct Reader<'a> {
    base: &'a Path,
    /// The configuration has rules of a firewall.
    has_rules: bool,
    taken: Taken,
}

impl Reader<'_> {
    /// A port with a wrong kind counts as memory from then on, because nothing else depends on that
    /// kind.
    fn read_kind(
        &mut self,
        name: &At<&str>,
        section: &Section<'_>,
        ledger: &mut Ledger<'_>,
    ) -> PortKind {
        let mut known = vec!["kind", "device", "mode", "engine", "input", "output"];
        known.extend(COMMON_KEYS);
        section.check_keys(&known, ledger);
        let kind = section.text("kind", ledger);
        if kind.is_absent() {
            let remedy =
                "add kind = \"af_xdp\", or \"af_packet\", \"tap\", \"capture\" or \"memory\"";
            section.missing("kind", remedy, ledger);
        }
        let kind = kind.read(ledger, |text| choice("kind of port", text, &KINDS));
        let device = device(name, section, ledger);
        let mode = section.text("mode", ledger);
        let mode = mode.read(ledger, |text| choice("mode", text, &MODES)).given();
        let engine = self.read_engine(section, ledger);
        if let (Some(mode), Engine::Tc) = (&mode, engine) {
            let what = "engine tc has no sockets, so it has no mode";
            ledger.relation(mode.span.clone(), what, "remove mode, or engine");
        }
        let input = self.file("input", section, ledger);
        let output = self.file("output", section, ledger);
        let Some(kind) = kind.given() else { return PortKind::Memory };
        check_fit(kind.value, section, ledger);
        match kind.value {
            Kind::Memory => PortKind::Memory,
            Kind::Tap => PortKind::Tap { device: self.take_device(device) },
            Kind::AfPacket => PortKind::AfPacket { device: self.take_device(device) },
            Kind::AfXdp => PortKind::AfXdp {
                device: self.take_device(device),
                mode: mode.map(|at| at.value).unwrap_or_default(),
                engine,
                because: match engine {
                    Engine::Auto => "auto: its port is in a configuration file".to_owned(),
                    engine => Choice::selected(engine).because,
                },
            },
            Kind::Capture => self.take_capture(input, output, section, ledger),
        }
    }

    fn read_engine(&self, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Engine {
        let engine = section.text("engine", ledger);
        let engine = engine.read(ledger, |text| choice("engine", text, &ENGINES)).given();
        let Some(At { value, span }) = engine else { return Engine::default() };
        if value == Engine::Tc && self.has_rules {
            let what = "engine tc leaves to the kernel what rules decide, and the kernel does not know the rules \
                        of this file";
            ledger.relation(span, what, "remove engine, or load the rules into the kernel instead");
        }
        value
    }

    fn file(&self, key: &str, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Setting<PathBuf> {
        section.text(key, ledger).read(ledger, |text| {
            if text.is_empty() || text.contains('\0') {
                return Fault::err(format!("{key} is not a file name"), "name a capture file");
            }
            Ok(self.base.join(text))
        })
    }

    fn take_device(&mut self, device: Option<At<String>>) -> String {
        let Some(At { value, span }) = device else { return String::new() };
        self.taken.devices.push((value.clone(), span));
        value
    }

    fn take_capture(
        &mut self,
        input: Setting<PathBuf>,
        output: Setting<PathBuf>,
        section: &Section<'_>,
        ledger: &mut Ledger<'_>,
    ) -> PortKind {
        if input.is_absent() && output.is_absent() {
            section.missing_any(
                "input or output",
                &["input", "output"],
                "name a capture file to read or to write",
                ledger,
            );
        }
        let (input, output) = (input.given(), output.given());
        self.taken.inputs.extend(input.iter().map(|at| (at.value.clone(), at.span.clone())));
        self.taken.outputs.extend(output.iter().map(|at| (at.value.clone(), at.span.clone())));
        PortKind::Capture { input: input.map(|at| at.value), output: output.map(|at| at.value) }
    }
}

/// The device of a port: the named one, or else the one with the port's name.
fn device(name: &At<&str>, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Option<At<String>> {
    let read = |text: &str| device_name("device", text).map(|()| text.to_owned());
    match section.text("device", ledger).read(ledger, read) {
        Setting::Absent => Some(At { value: name.value.to_owned(), span: name.span.clone() }),
        given => given.given(),
    }
}

/// Reports the keys that do not apply to this kind of port.
fn check_fit(kind: Kind, section: &Section<'_>, ledger: &mut Ledger<'_>) {
    let has_device = matches!(kind, Kind::Tap | Kind::AfPacket | Kind::AfXdp);
    let has_files = kind == Kind::Capture;
    let own = KINDS.iter().find(|(_, k)| *k == kind).map_or("", |(word, _)| word);
    for (key, fits, for_kinds) in [
        ("device", has_device, "tap, af_packet and af_xdp"),
        ("mode", kind == Kind::AfXdp, "af_xdp"),
        ("engine", kind == Kind::AfXdp, "af_xdp"),
        ("input", has_files, "capture"),
        ("output", has_files, "capture"),
    ] {
        if let Some(span) = section.key_span(key).filter(|_| !fits) {
            let what = format!("{key} does not apply to a port of kind {own}");
            ledger.relation(span, what, format!("remove it; it is for the kind {for_kinds}"));
        }
    }
}

/// Devices and files that only one port can use.
#[derive(Default)]
struct Taken {
    devices: Vec<(String, Span)>,
    inputs: Vec<(PathBuf, Span)>,
    outputs: Vec<(PathBuf, Span)>,
}

impl Taken {
    fn check(&self, ledger: &mut Ledger<'_>) {
        let mut first: HashMap<&str, &Span> = HashMap::new();
        for (device, span) in &self.devices {
            if let Some(other) = first.get(device.as_str()) {
                let line = ledger.line(other.start);
                ledger.relation(
                    span.clone(),
                    format!("the device {device} is already that of another port (line {line})"),
                    "give each port its own device",
                );
                continue;
            }
            first.insert(device, span);
        }
        self.check_files(ledger);
    }

    fn check_files(&self, ledger: &mut Ledger<'_>) {
        let mut used: HashMap<&Path, (&str, &Span)> = HashMap::new();
        used.extend(self.inputs.iter().map(|(file, span)| (file.as_path(), ("read", span))));
        for (file, span) in &self.outputs {
            if let Some((how, other)) = used.get(file.as_path()) {
                let line = ledger.line(other.start);
                let shown = quoted(&file.to_string_lossy());
                ledger.relation(
                    span.clone(),
                    format!("the file {shown} is already {how} by a port (line {line})"),
                    "write to a file of its own",
                );
                continue;
            }
            used.insert(file, ("written", span));
        }
    }
}
