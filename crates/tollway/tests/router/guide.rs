//! Runs the commands of "A router in five minutes" as the guide shows them.

use crate::typed::{commands, output_of, session, succeeded};

const PAGE: &str = include_str!("../../../../docs/guide/router-in-five-minutes.md");

pub fn five_minutes() {
    let all = commands(PAGE);
    // The commands after this one need a real router.
    let end = all.iter().position(|command| *command == "exit").unwrap();
    let typed = session(&all[..=end]);
    succeeded(&typed);
    assert!(typed.len() > 15, "{}", typed.len());
    let check = output_of(&typed, "tollway check eth0 eth1");
    assert!(check.contains("IPv4 is fast both ways on 2 of 2 links"), "{check}");
    let pings = typed.iter().filter(|typed| typed.command.contains("ping"));
    for ping in pings {
        let all = ping.output.contains(" 0% packet loss");
        // A busy machine may lose some of the fifty pings.
        assert!(all || ping.output.contains("50 packets transmitted, 4"), "{}", ping.output);
    }
    let offload = output_of(&typed, "tollway show offload");
    assert!(offload.contains("user path"), "{offload}");
    let routes = output_of(&typed, "tollway show routes get");
    assert!(routes.contains("203.0.113.1 takes 203.0.113.0/24 in the VRF main"), "{routes}");
    let sync = output_of(&typed, "tollway sync");
    assert!(sync.contains("changes of the kernel are installed"), "{sync}");
}
