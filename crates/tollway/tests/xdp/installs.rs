//! Installations of other tables for programs on devices.

use std::sync::Arc;

use tollway_dataplane::router::Router;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::log::{Journal, Logger};
use tollway_model::compile::{Compiled, compile_in};
use tollway_model::names::{NameTable, Names};
use tollway_model::{Model, PortIndex, config};
use tollway_net::Mac;
use tollway_worker::Updater;
use tollway_worker::installer::{InstallError, Installer, Next, Parts};
use tollway_worker::ports::af_xdp::{OwnedProgram, Target};
use tollway_worker::ports::dispatcher::Dispatcher;

use super::namespaces::{ifindex, sh, until};

const TEXT: &str = r#"
    [ports.p]
    kind = "af_xdp"
    addresses = ["10.0.0.1/24"]
"#;

fn logger() -> Logger {
    Logger::new(&Ruleset::default(), &[])
}

fn compiled(dispatcher: &Dispatcher, model: &Model) -> Compiled {
    dispatcher.make_tables(model, |memory| compile_in(memory, model)).unwrap()
}

/// A port with the tc program, which decides by tables and has no sockets.
fn attached(dispatcher: &Dispatcher) -> Box<dyn OwnedProgram> {
    sh("ip link add p type veth peer name q");
    let mut program = dispatcher.program(PortIndex(0)).unwrap();
    program.attach_tc(target()).unwrap();
    program
}

fn target() -> Target<'static> {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    Target { device: "p", ifindex: ifindex("p"), queues: 1, slots: 0, mac, mtu: 1500 }
}

/// If no worker takes the next tables, the programs decide by those that the workers have.
pub fn failed() {
    let model = config::parse(TEXT, "router.toml").unwrap().model;
    let dispatcher = Arc::new(Dispatcher::load(&model));
    let _program = attached(&dispatcher);
    let Compiled { tables, host } = compiled(&dispatcher, &model);
    dispatcher.use_tables(&tables);
    let router = Router::new(tables, host);
    let is_read = || {
        let epochs = Arc::clone(&router.lock().tables.epochs);
        let epoch = epochs.advance();
        let is_read = epochs.passed() < epoch;
        until("programs have passed", || epochs.passed() >= epoch);
        is_read
    };
    assert!(is_read());
    // The worker has ended.
    let (mailbox, _) = tollway_worker::mailbox().unwrap();
    let parts = Parts {
        model: model.clone(),
        kernel: vec![true],
        name_table: NameTable::new(Names::from(&model)),
        dispatcher: Arc::clone(&dispatcher),
        journal: Journal::new(logger()),
        updater: Updater::new(&router, mailbox, dispatcher.outdated()),
    };
    let mut installer = Installer::new(parts, None);
    let mut next = model.clone();
    next.links[0].mtu = 1400;
    for model in [model, next] {
        let next = Next { compiled: compiled(&dispatcher, &model), logger: logger() };
        let error = installer.install(model, next).unwrap_err();
        assert!(matches!(error, InstallError::Gone), "{error}");
        assert!(is_read(), "programs read the active tables");
    }
}

/// Tables lie in maps only if some port has the XDP path, or may get it.
pub fn lent() {
    let text = TEXT.replace("kind = \"af_xdp\"", "kind = \"af_xdp\"\nengine = \"user\"");
    for (text, is_lent) in [(TEXT, true), (&text, false)] {
        let model = config::parse(text, "router.toml").unwrap().model;
        let dispatcher = Dispatcher::load(&model);
        assert_eq!(compiled(&dispatcher, &model).tables.memory().is_lent(), is_lent, "{text}");
    }
    let model = config::parse(TEXT, "router.toml").unwrap().model;
    let dispatcher = Dispatcher::load(&model);
    let is_lent = || compiled(&dispatcher, &model).tables.memory().is_lent();
    sh("ip link add p type veth peer name q");
    let mut program = dispatcher.program(PortIndex(0)).unwrap();
    // As for a port with zero-copy, whose frames all go to user space.
    program.attach(target(), false).unwrap();
    assert!(!is_lent());
    program.detach();
    assert!(is_lent(), "it may be attached with the XDP path");
    program.attach(target(), false).unwrap();
    assert!(is_lent(), "a port that is opened again gets the path last");
}
