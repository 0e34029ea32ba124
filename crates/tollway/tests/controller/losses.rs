//! Lost messages.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tollway_controller::netlink::Settings;

use crate::bridges;
use crate::dice::Dice;
use crate::ip::{Ip, veth_pairs};
use crate::model::SyncedModel;
use crate::random;

/// The receive buffer is far too small.
pub fn buffer() {
    veth_pairs();
    bridges::add();
    let mut dice = Dice(7);
    let settings = Settings { receive_buffer: 1, ..Settings::default() };
    let mut synced = SyncedModel::new(settings);
    for _ in 0..5 {
        let mut ip = Ip::new();
        ip.run(&random::lines(&mut dice, 3000));
        ip.finish();
        synced.assert_agrees();
    }
    println!("{:?}", synced.source.stats());
    assert!(synced.source.stats().lost > 0, "nothing was lost, so this test tests nothing");
}

/// The test does not read for five seconds, while 100,000 routes change.
pub fn stop() {
    const COUNT: u32 = 100_000;
    veth_pairs();
    let settings = Settings { receive_buffer: 4 << 20, ..Settings::default() };
    let mut synced = SyncedModel::new(settings);
    for round in 0..2 {
        let start = Instant::now();
        let mut lines = String::new();
        for n in 0..COUNT / 2 {
            let _ = writeln!(
                lines,
                "route add {}.{}.{}.0/24 via 10.0.{round}.2",
                20 + (n >> 16),
                n >> 8 & 255,
                n & 255
            );
            let _ = writeln!(lines, "route add 2001:db8:{n:x}::/48 via fd00:{round}::2");
        }
        if round == 1 {
            lines = lines.replace(" add ", " replace ");
        }
        let mut ip = Ip::new();
        ip.run(&lines);
        ip.finish();
        std::thread::sleep(Duration::from_secs(5).saturating_sub(start.elapsed()));
        let stopped = Instant::now();
        synced.read_until_quiet();
        let took = stopped.elapsed();
        println!("as the kernel has it after {took:?}: {:?}", synced.source.stats());
        assert!(took < Duration::from_secs(3));
        synced.assert_agrees();
        assert!(synced.model.routes.len() > 100_000);
        assert!(synced.model.lost > round);
    }
}
