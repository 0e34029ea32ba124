//! Prints an answer page by page as it arrives, because there may be a million rows.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CliError, ShowClient};
use crate::control::{ShowRequest, VERSION};
use tollway_linux::sys::why;

/// A page of an answer.
pub(super) trait Paged: DeserializeOwned {
    /// The member of the printed JSON object that has the rows, also their name for people.
    const MEMBER: &str;
    /// What to print if there are no rows.
    const NONE: &str;

    /// Whether another page follows.
    fn more(&self) -> bool;

    /// The rows, as the printed JSON has them.
    fn rows(&self) -> impl Iterator<Item = impl Serialize>;
}

/// Sends a query, and prints the pages of its answer: as JSON, or each by `text`.
pub(super) fn print<P: Paged>(
    client: &mut ShowClient<'_>,
    show: &ShowRequest,
    text: impl FnMut(&P) -> String,
) -> Result<(), CliError> {
    client.control.send_show(show).map_err(|error| CliError::control(&error))?;
    let mut printer = Printer { out: BufWriter::new(io::stdout().lock()), text };
    match printer.print(client) {
        Ok(()) => Ok(()),
        Err(PrintError::Router(error)) => Err(error),
        // The reader has closed the pipe, so it has read what it wants.
        Err(PrintError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(PrintError::Output(error)) => Err(CliError::failed(
            format!("the {} cannot be written to stdout: {}", P::MEMBER, why(&error)),
            "Redirect them to a place that has room",
        )),
    }
}

/// Why the rows are not printed completely.
enum PrintError {
    Router(CliError),
    Output(io::Error),
}

impl From<io::Error> for PrintError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

struct Printer<W, T> {
    out: W,
    text: T,
}

impl<W: Write, T> Printer<W, T> {
    fn print<P: Paged>(&mut self, client: &mut ShowClient<'_>) -> Result<(), PrintError>
    where
        T: FnMut(&P) -> String,
    {
        let mut is_empty = true;
        loop {
            let page = client.control.answer::<P>();
            let page = page.map_err(|error| PrintError::Router(CliError::control(&error)))?;
            if client.json {
                is_empty = self.json(&page, is_empty)?;
            } else {
                is_empty &= page.rows().next().is_none();
                let text = (self.text)(&page);
                self.out.write_all(text.as_bytes())?;
            }
            if !page.more() {
                break;
            }
        }
        match (client.json, is_empty) {
            (true, true) => writeln!(self.out, "{}\n], \"v\": {VERSION}}}", begin::<P>())?,
            (true, false) => writeln!(self.out, "\n], \"v\": {VERSION}}}")?,
            (false, true) => writeln!(self.out, "{}", P::NONE)?,
            (false, false) => {}
        }
        Ok(self.out.flush()?)
    }

    /// Writes the rows of one JSON object, each on a line. Returns whether there were none yet.
    fn json<P: Paged>(&mut self, page: &P, mut is_empty: bool) -> io::Result<bool> {
        for row in page.rows() {
            let before = if is_empty { begin::<P>() } else { ",\n".to_owned() };
            self.out.write_all(before.as_bytes())?;
            serde_json::to_writer(&mut self.out, &row)?;
            is_empty = false;
        }
        Ok(is_empty)
    }
}

/// The begin of the printed JSON object.
fn begin<P: Paged>() -> String {
    format!("{{\"{}\": [\n", P::MEMBER)
}
