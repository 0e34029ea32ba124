//! The answers to requests about connections.

use std::io;
use std::time::Instant;

use super::{AnswerError, RequestHandler, SendLine};
use crate::control::connections::{
    self, ConnectionFilter, KernelConnections, PagesError, StateSource,
};
use crate::control::message::{ConnectionTotals, line, refusal};
use crate::control::offload::Why;
use tollway_worker::connections::KernelReason;

/// The answer about connections of a router that runs from a file.
const NO_CONNECTIONS: &str =
    "this router has no connections: a file configures it, whose rules test no connections";

impl RequestHandler {
    /// Sends the kernel's connections page by page, or the states of the rules.
    pub(super) fn connections(
        &self,
        filter: &ConnectionFilter,
        send: SendLine<'_>,
    ) -> io::Result<()> {
        if self.backends.controller.is_none() {
            return self.states(filter, send);
        }
        let links = self.name_table.names().links.iter().map(|link| link.name.clone()).collect();
        let general = self.current_offload().map(|offload| offload.general).unwrap_or_default();
        let first = |reasons: Vec<Why>| reasons.into_iter().next().map(|why| why.why);
        let all_by_kernel = [first(general.ipv4), first(general.ipv6)];
        let live = self.backends.connections.as_ref();
        let mut source = KernelConnections::new(live, links, all_by_kernel);
        match connections::pages(filter, &mut source, &mut |page| send(&line(page))) {
            Ok(()) => Ok(()),
            Err(PagesError::Client(error)) => Err(error),
            Err(error @ PagesError::Kernel(_)) => send(&refusal(&error.to_string())),
        }
    }

    /// Sends the connections that the router tracks, and the states that the rules keep. The worker only hands the rules over.
    fn states(&self, filter: &ConnectionFilter, send: SendLine<'_>) -> io::Result<()> {
        let active =
            self.on_worker(|_, worker, _| (worker.state().filter.clone(), worker.now_ns()));
        let (rules, now_ns) = match active {
            Ok(active) => active,
            Err(error) => return send(&refusal(&error.to_string())),
        };
        let Some(rules) = rules.as_deref().filter(|rules| connections::has_connections(rules))
        else {
            return send(&refusal(NO_CONNECTIONS));
        };
        let taken = Instant::now();
        let now_ns = || now_ns + taken.elapsed().as_secs() * 1_000_000_000;
        let mut source = StateSource::new(rules, &now_ns);
        match connections::pages(filter, &mut source, &mut |page| send(&line(page))) {
            Err(PagesError::Client(error) | PagesError::Kernel(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Connections; none if the kernel tracks none.
    pub(super) fn connection_totals(&self) -> Option<ConnectionTotals> {
        let live = self.backends.connections.as_ref()?;
        let tracked = connections::tracked_count()?;
        let tally = live.tally();
        let name = |why: u8| KernelReason::of(why).map_or("unknown", KernelReason::name);
        let kernel = tally.kernel.iter().map(|(why, count)| (name(*why).to_owned(), *count));
        Some(ConnectionTotals {
            tracked,
            tracked_most: connections::most_tracked(),
            directions_forwarded: tally.forwarded,
            directions_dropped: tally.dropped,
            directions_untracked: tally.untracked,
            directions_unruled: tally.unruled,
            directions_kernel: kernel.collect(),
            directions_entered: live.entered(),
            table_room: tally.slots,
            answers: live.answers(),
            answers_without_room: live.without_room(),
            kernel_statistics: connections::statistics(),
        })
    }

    pub(super) fn totals(&self) -> Result<String, AnswerError> {
        self.connection_totals().map(|totals| line(&totals)).ok_or(AnswerError::NoTracking)
    }
}
