//! nft's mistakes are at their place, and a file that is loaded leaves nothing behind.

use super::super::script::listing;
use tollway_firewall::mistake::Mistake;

fn refused(text: &str) -> Vec<Mistake> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.nft");
    std::fs::write(&file, text).unwrap();
    listing(&file).unwrap_err()
}

#[test]
fn mistakes_of_nft_have_their_place() {
    let mistakes = refused("table ip t {\n  chain c {\n    tcp dport 70000 drop\n  }\n}\n");
    assert_eq!((mistakes[0].line, mistakes[0].column), (3, 15), "{mistakes:?}");
    assert!(mistakes[0].what.contains("out of range"), "{mistakes:?}");
    assert_eq!(mistakes[0].excerpt, "    tcp dport 70000 drop");
    let mistakes = refused("table ip t {\n  chain c { iif nosuch drop; }\n}\n");
    assert!(mistakes[0].what.contains("Interface does not exist"), "{mistakes:?}");
    assert!(mistakes[0].remedy.contains("iifname"), "{mistakes:?}");
    let mistakes = refused("include \"/nonexistent/rules.nft\"\n");
    assert!(!mistakes[0].what.is_empty(), "{mistakes:?}");
    let mistakes = listing(std::path::Path::new("/nonexistent/rules.nft")).unwrap_err();
    assert!(mistakes[0].what.starts_with("cannot be read"), "{mistakes:?}");
}

#[test]
fn a_script_leaves_nothing_behind() {
    let before = std::fs::read_to_string("/proc/net/dev").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.nft");
    let text = "table netdev tollway_test {\n chain c {\n type filter hook ingress device \
                tollwaynft0 priority 0;\n }\n}\n";
    std::fs::write(&file, text).unwrap();
    let listing = listing(&file).unwrap();
    assert!(listing.contains("tollwaynft0"));
    let after = std::fs::read_to_string("/proc/net/dev").unwrap();
    assert!(!before.contains("tollwaynft0") && !after.contains("tollwaynft0"));
}
