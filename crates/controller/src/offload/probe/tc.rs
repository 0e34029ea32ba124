//! Queueing disciplines on egress, and filters, that have been configured with tc(8).
//!
//! A queueing discipline that the kernel has attached by itself has the handle 0
//! (`attach_default_qdiscs`); any other has been configured. Filters are attached to a discipline of kind
//! `clsact` or `ingress`; since Linux 6.6, BPF programs are attached without one (tcx).

use std::collections::BTreeMap;
use std::io;

use crate::kernel::Ifindex;
use tollway_linux::netlink::QuerySocket;
use tollway_linux::netlink::find;

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_INGRESS_BLOCK: u16 = 13;
const TCA_EGRESS_BLOCK: u16 = 14;
/// `TC_H_INGRESS`, and with the minor numbers of clsact's two hooks.
const INGRESS: u32 = 0xffff_0000;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;

/// What is attached to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TcAttachments {
    /// The queueing discipline configured for egress.
    pub(super) qdisc: Option<String>,
    /// There are filters on ingress.
    pub(super) ingress: bool,
    /// Those are in a block that several disciplines share, so no filter can be added for this device alone.
    pub(super) ingress_block: bool,
    /// There are filters on egress.
    pub(super) egress: bool,
}

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Qdisc {
    ifindex: Ifindex,
    handle: u32,
    kind: String,
    /// Filters on ingress, or on egress, are in a block that several disciplines share.
    blocks: (bool, bool),
}

/// What is attached to each device that has anything.
///
/// # Errors
/// The kernel refused.
pub(super) fn attachments(route: &mut QuerySocket) -> io::Result<BTreeMap<Ifindex, TcAttachments>> {
    let qdiscs = route.list(RTM_GETQDISC, &[0; TCMSG], |kind, body| {
        (kind == RTM_NEWQDISC).then(|| qdisc(body)).flatten()
    })?;
    let mut all: BTreeMap<Ifindex, TcAttachments> = BTreeMap::new();
    for Qdisc { ifindex, handle, kind, blocks } in qdiscs {
        let mut filters = |parent| has_filters(route, ifindex, parent);
        let on = match kind.as_str() {
            "clsact" => TcAttachments {
                qdisc: None,
                ingress: blocks.0 || filters(CLSACT_INGRESS)?,
                ingress_block: blocks.0,
                egress: blocks.1 || filters(CLSACT_EGRESS)?,
            },
            "ingress" => TcAttachments {
                ingress: blocks.0 || filters(INGRESS)?,
                ingress_block: blocks.0,
                ..TcAttachments::default()
            },
            _ if is_default(&kind, handle) => continue,
            _ => TcAttachments { qdisc: Some(kind), ..TcAttachments::default() },
        };
        let sum = all.entry(ifindex).or_default();
        sum.qdisc = sum.qdisc.take().or(on.qdisc);
        sum.ingress |= on.ingress;
        sum.ingress_block |= on.ingress_block;
        sum.egress |= on.egress;
    }
    Ok(all)
}

/// Says whether packets that bypass the discipline miss nothing.
fn is_default(kind: &str, handle: u32) -> bool {
    handle >> 16 == 0 || kind == "noqueue"
}

fn qdisc(body: &[u8]) -> Option<Qdisc> {
    let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    body.get(..TCMSG)?;
    let block = |kind| find(body, TCMSG, kind).is_some();
    Some(Qdisc {
        ifindex: word(4)?,
        handle: word(8)?,
        kind: find(body, TCMSG, TCA_KIND).map(|kind| kind.text()).unwrap_or_default(),
        blocks: (block(TCA_INGRESS_BLOCK), block(TCA_EGRESS_BLOCK)),
    })
}

/// Says whether there are filters, other than Tollway's own.
fn has_filters(route: &mut QuerySocket, ifindex: Ifindex, parent: u32) -> io::Result<bool> {
    let mut body = [0; TCMSG];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    // The kernel lists a filter's preference once more, without options, before the filter.
    let is_others =
        |body: &[u8]| find(body, TCMSG, TCA_OPTIONS).is_some() && !tollway_xdp::is_own_filter(body);
    let filters = route.list(RTM_GETTFILTER, &body, |kind, body| {
        (kind == RTM_NEWTFILTER && is_others(body)).then_some(())
    });
    match filters {
        Ok(filters) => Ok(!filters.is_empty()),
        // The device or the discipline has gone meanwhile.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_linux::netlink::push;

    #[test]
    fn a_discipline_is_read_and_the_default_is_recognized() {
        let mut body = vec![0; TCMSG];
        body[4] = 5;
        body[8..12].copy_from_slice(&0x8001_0000_u32.to_ne_bytes());
        push(&mut body, TCA_KIND, b"htb\0");
        let plain = Qdisc {
            ifindex: 5,
            handle: 0x8001_0000,
            kind: "htb".to_owned(),
            blocks: (false, false),
        };
        assert_eq!(qdisc(&body), Some(plain.clone()));
        (0..TCMSG).for_each(|end| assert_eq!(qdisc(&body[..end]), None, "{end}"));
        push(&mut body, TCA_EGRESS_BLOCK, &7_u32.to_ne_bytes());
        assert_eq!(qdisc(&body), Some(Qdisc { blocks: (false, true), ..plain }));
        assert!(is_default("fq_codel", 0) && is_default("noqueue", 0x8001_0000));
        assert!(!is_default("fq_codel", 0x8001_0000), "the same, but somebody's choice");
    }
}
