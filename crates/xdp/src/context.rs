//! What a program is told about a frame in memory that it runs on.

/// An XDP program's context of a frame (`struct xdp_md`).
#[derive(Default)]
#[repr(C)]
pub(super) struct Context {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

impl Context {
    pub(super) fn new(frame_len: u32, ingress_ifindex: u32, rx_queue_index: u32) -> Self {
        Self { data_end: frame_len, ingress_ifindex, rx_queue_index, ..Self::default() }
    }
}

/// A tc program's context of a frame (`struct __sk_buff`), in words.
#[repr(C)]
pub(super) struct SkbContext([u32; 48]);

impl SkbContext {
    /// The words `ifindex` and `gso_size`.
    const IFINDEX: usize = 10;
    const SEGMENT: usize = 44;

    /// The context of a frame from a device; a super-frame, if `segment` is not 0, for segments of so many bytes.
    pub(super) fn new(ifindex: u32, segment: u32) -> Self {
        let mut words = [0; 48];
        words[Self::IFINDEX] = ifindex;
        words[Self::SEGMENT] = segment;
        Self(words)
    }
}
