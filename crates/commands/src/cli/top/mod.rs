//! `tollway top`: shows live what a running router does.

mod rates;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::{DefaultTerminal, Terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::CliError;
use crate::control::{All, Client, ClientError, ShowRequest};
use rates::Rates;
use tollway_linux::sys::why;
use view::Screen;

/// A key or signal takes effect within this time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `tollway top`.
#[derive(clap::Args)]
#[command(after_help = "q ends it.")]
pub(super) struct Args {
    /// Use this control socket [default: as `tollway run`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Set the seconds between two refreshes
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one screen as text after one interval, exit
    #[arg(long)]
    once: bool,
    /// Set the printed size [default: terminal, or 80x24]
    #[arg(long, value_name = "COLUMNSxROWS", requires = "once", value_parser = size)]
    size: Option<(u16, u16)>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("write a number from 0.1 to 3600".to_owned())
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let sizes = text.split_once('x').and_then(|(columns, rows)| {
        let within = |text: &str| text.parse().ok().filter(|size| (1..=1000).contains(size));
        Some((within(columns)?, within(rows)?))
    });
    sizes.ok_or("write it as 80x24".to_owned())
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let failed = |error: ClientError| CliError::control(&error);
    let client = Client::connect(args.socket.as_deref()).map_err(failed)?;
    let socket = client.path().display().to_string();
    let mut view = LiveView { client, last: None, screen: Screen { socket, ..Screen::default() } };
    view.refresh().map_err(failed)?;
    if args.once {
        std::thread::sleep(args.interval);
        view.refresh().map_err(failed)?;
        let size = args.size.or_else(|| terminal::size().ok()).unwrap_or((80, 24));
        return super::print(text(&view.screen, size));
    }
    if !io::stdout().is_terminal() {
        let what = "stdout is no terminal, which `tollway top` needs";
        return Err(CliError::usage(what, "Use --once for one screen as text"));
    }
    let terminal_error = |error: &io::Error| {
        let what = format!("the terminal cannot be used: {}", why(error));
        CliError::failed(what, "Use --once for one screen as text")
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let listening = signal_hook::flag::register(signal, Arc::clone(&stop));
        listening.map_err(|error| terminal_error(&error))?;
    }
    // From here on, a panic restores the terminal too.
    let mut terminal = ratatui::try_init().map_err(|error| terminal_error(&error))?;
    let ended = view.live(&mut terminal, args.interval, &stop);
    let restored = ratatui::try_restore();
    match ended.and(restored.map_err(End::Terminal)) {
        Ok(()) => Ok(()),
        Err(End::Terminal(error)) => Err(terminal_error(&error)),
        Err(End::Router(error)) => Err(failed(error)),
    }
}

/// Why the live view ended.
enum End {
    Terminal(io::Error),
    Router(ClientError),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Terminal(error)
    }
}

/// The state of the view: the connection, the last answer, and the screen.
struct LiveView {
    client: Client,
    last: Option<All>,
    screen: Screen,
}

impl LiveView {
    /// Sends the next query. If the router refuses for the moment, the next call tries again.
    fn refresh(&mut self) -> Result<(), ClientError> {
        let new: All = match self.client.show(&ShowRequest::All) {
            Ok(new) => new,
            Err(ClientError::Refused(sentence)) => {
                self.screen.trouble = Some(sentence);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.screen.trouble = new.ports.totals.defect.clone();
        self.screen.uptime_s = new.uptime_ns / 1_000_000_000;
        self.screen.rates = self.last.as_ref().map(|last| Rates::between(last, &new));
        self.last = Some(new);
        Ok(())
    }

    fn live(
        &mut self,
        terminal: &mut DefaultTerminal,
        interval: Duration,
        stop: &AtomicBool,
    ) -> Result<(), End> {
        let mut next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| view::draw(frame, &self.screen))?;
            let mut changed = false;
            while !changed {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let left = next.saturating_duration_since(Instant::now());
                if event::poll(left.min(POLL_INTERVAL))? {
                    match event::read()? {
                        Event::Key(key) if quits(key) => return Ok(()),
                        Event::Resize(..) => changed = true,
                        _ => {}
                    }
                }
                if Instant::now() >= next {
                    self.refresh().map_err(End::Router)?;
                    next = Instant::now() + interval;
                    changed = true;
                }
            }
        }
    }
}

fn quits(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// Renders a screen as text.
fn text(screen: &Screen, (columns, rows): (u16, u16)) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(_) = terminal.draw(|frame| view::draw(frame, screen));
    lines(terminal.backend().buffer())
}

/// The characters of a screen, line by line, without trailing blanks.
fn lines(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    format!("{}\n", text.trim_end())
}
