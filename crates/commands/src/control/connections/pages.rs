//! Sends connections in pages while the kernel lists them: the router never has more than one page, but for those of
//! the largest that a client wants sorted.

use std::ops::ControlFlow;

use super::filter::ConnectionFilter;
use super::pager::{Pager, PagesError, SendPage, each};
use super::ranked::ranked;
use super::source::Source;

/// Sends the connections of a source that a filter selects, page by page, and an empty page at the end.
pub fn pages(
    filter: &ConnectionFilter,
    source: &mut dyn Source,
    send: SendPage<'_>,
) -> Result<(), PagesError> {
    let mut pager = Pager::new(send);
    source.refresh();
    match filter.sort {
        Some(order) => {
            for connection in ranked(filter, order, source, &mut pager)? {
                pager.add(connection).map_err(PagesError::Client)?;
            }
        }
        None => listed(filter, source, &mut pager)?,
    }
    pager.end().map_err(PagesError::Client)
}

/// Adds all connections that a filter selects, in the order of the source.
fn listed(
    filter: &ConnectionFilter,
    source: &dyn Source,
    pager: &mut Pager<'_>,
) -> Result<(), PagesError> {
    let mut left = filter.limit.unwrap_or(usize::MAX);
    if left == 0 {
        return Ok(());
    }
    each(filter, source, pager, |connection, pager| {
        let described = source.describe(connection);
        if filter.selects_described(&described) {
            pager.add(described)?;
            left -= 1;
        }
        Ok(if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
}
