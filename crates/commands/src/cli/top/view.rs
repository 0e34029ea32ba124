//! Draws one frame of `tollway top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};

use super::rates::{ConnectionRates, PathShares, PortRates, Rates, Reason, WorkerRates};
use crate::cli::text::{si, thousands};

/// The contents of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    /// The router's socket.
    pub(super) socket: String,
    /// The time since the server was started, s.
    pub(super) uptime_s: u64,
    /// The rates; none before the second answer.
    pub(super) rates: Option<Rates>,
    /// Why there is no answer.
    pub(super) trouble: Option<String>,
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Draws a frame of any size.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let count = screen.rates.as_ref().map_or(0, |rates| rates.ports.len()) as u16;
    let has = |line: fn(&Rates) -> bool| u16::from(screen.rates.as_ref().is_some_and(line));
    let optional = has(|rates| rates.paths.is_some()) + has(|rates| rates.connections.is_some());
    // Half of the height is for the other tables, if they need it.
    let most = (area.height / 2).max(area.height.saturating_sub(16));
    let workers = worker_rows(screen).min(most / 2);
    let ports = (count + 1).min(most - workers);
    let rows = [
        Constraint::Length(3 + optional),
        Constraint::Length(ports + 1),
        Constraint::Length(workers),
        Constraint::Min(0),
    ];
    let [top, middle, below, bottom] = Layout::vertical(rows).areas(area);
    frame.render_widget(title(screen), top);
    let Some(rates) = &screen.rates else { return };
    frame.render_widget(port_table(&rates.ports, middle.width), middle);
    if workers > 0 {
        // The last row is the gap to the tables below.
        let rows = Rect { height: workers - 1, ..below };
        frame.render_widget(worker_table(&rates.workers, rows.width), rows);
    }
    let (drops, punts, tolls) = places(bottom, rates);
    frame.render_widget(reason_table("dropped", &rates.drops, drops.width), drops);
    frame.render_widget(reason_table("punted", &rates.punts, punts.width), punts);
    draw_tolls(frame, tolls, rates);
}

/// The height of the table of workers with a gap below it; a single worker has none.
fn worker_rows(screen: &Screen) -> u16 {
    let count = screen.rates.as_ref().map_or(0, |rates| rates.workers.len()) as u16;
    if count > 1 { count + 2 } else { 0 }
}

/// Widths of the tables of reasons and tolls, and of the gap between them.
const REASONS: Constraint = Constraint::Length(44);
const TOLLS: Constraint = Constraint::Length(33);
const GAP: Constraint = Constraint::Length(3);

/// The areas for drops, punts and tolls: side by side if there is room.
fn places(area: Rect, rates: &Rates) -> (Rect, Rect, Rect) {
    if area.width >= 44 + 3 + 44 + 3 + 33 {
        let columns = [REASONS, GAP, REASONS, GAP, TOLLS];
        let [drops, _, punts, _, tolls] = Layout::horizontal(columns).areas(area);
        return (drops, punts, tolls);
    }
    let [left, _, tolls] = Layout::horizontal([REASONS, GAP, TOLLS]).areas(area);
    let punts = rates.punts.len() as u16 + 2;
    let most = (left.height / 2).max(left.height.saturating_sub(punts));
    let drops = (rates.drops.len() as u16 + 2).min(most);
    let [drops, punts] =
        Layout::vertical([Constraint::Length(drops), Constraint::Min(0)]).areas(left);
    (drops, punts, tolls)
}

fn title(screen: &Screen) -> ratatui::text::Text<'static> {
    let uptime = screen.uptime_s;
    let (hours, minutes, seconds) = (uptime / 3600, uptime / 60 % 60, uptime % 60);
    let mut first = Line::default();
    first.push_span(Span::styled("tollway top", BOLD));
    first.push_span(format!("  up {hours}:{minutes:02}:{seconds:02}  {}", screen.socket));
    let mut second = Line::default();
    match (&screen.trouble, &screen.rates) {
        (Some(trouble), _) => second.push_span(Span::styled(trouble.clone(), ALARM)),
        (None, None) => second.push_span("waiting for the second answer"),
        (None, Some(rates)) => {
            for (name, rate) in rates.totals {
                second.push_span(Span::styled(format!("{}/s", si(rate)), BOLD));
                second.push_span(format!(" {name}  "));
            }
        }
    }
    let paths = screen.rates.as_ref().and_then(|rates| rates.paths.as_ref());
    let connections = screen.rates.as_ref().and_then(|rates| rates.connections.as_ref());
    let optional = paths.map(paths_line).into_iter().chain(connections.map(connections_line));
    ratatui::text::Text::from([first, second].into_iter().chain(optional).collect::<Vec<_>>())
}

/// A share in words. Rounding never turns one into none or all.
fn percent(share: f64) -> String {
    let is_part = share > 0.0 && share < 100.0;
    format!("{:.1}%", if is_part { share.clamp(0.1, 99.9) } else { share })
}

/// The connections that the kernel tracks, and what the programs do with them.
fn connections_line(connections: &ConnectionRates) -> Line<'static> {
    let mut line = Line::default();
    line.push_span(Span::styled(thousands(connections.tracked), BOLD));
    line.push_span(" connections  ");
    line.push_span(Span::styled(format!("{}/s", si(connections.entered)), BOLD));
    line.push_span(" entered  ");
    line.push_span(Span::styled(percent(connections.forwarded), BOLD));
    line.push_span(" of directions fast");
    if let Some(why) = &connections.why {
        line.push_span(format!(", others: {why}"));
    }
    line
}

/// The shares of the paths.
fn paths_line(shares: &PathShares) -> Line<'static> {
    let mut line = Line::default();
    line.push_span(Span::styled(percent(100.0 - shares.kernel), BOLD));
    line.push_span(" fast path  ");
    line.push_span(Span::styled(percent(shares.kernel), BOLD));
    line.push_span(" kernel path");
    if let Some(why) = &shares.why {
        line.push_span(format!(", most for {why}"));
    }
    line
}

/// Widths of a port's name, state, and a rate. A rate takes at least [`LEAST_RATE`].
const NAME: u16 = 15;
const STATE: u16 = 5;
const RATE: u16 = 9;

/// The widest text that [`si`] returns.
const LEAST_RATE: u16 = 6;

/// The table of ports. In a narrow area it cuts names, then narrows the rates, then drops the last
/// columns. It never cuts a number, which would show another value.
fn port_table(ports: &[PortRates], width: u16) -> Table<'static> {
    let heads = ["port", "state", "rx pkt/s", "rx bit/s", "tx pkt/s", "tx bit/s", "missed/s"];
    let room = width.saturating_sub(STATE + 1);
    let rates = (room / (LEAST_RATE + 1)).min(5);
    let rate = (room / rates.max(1)).saturating_sub(1).clamp(LEAST_RATE, RATE);
    let name = room.saturating_sub(rates * (rate + 1)).saturating_sub(1).min(NAME);
    let shown = 2 + usize::from(rates);
    let header = right(heads.into_iter().take(shown), 2);
    let row = |port: &PortRates| {
        let PortRates { name, state, rx, tx, missed } = port;
        let numbers = [rx.packets, rx.bits, tx.packets, tx.bits, *missed].map(si);
        let cells = [name.clone(), state.clone()].into_iter().chain(numbers);
        let row = right(cells.take(shown), 2);
        if state == "up" { row } else { row.style(ALARM) }
    };
    let mut widths = vec![Constraint::Length(name), Constraint::Length(STATE)];
    widths.extend((0..rates).map(|_| Constraint::Length(rate)));
    Table::new(ports.iter().map(row), widths).header(header.style(BOLD)).column_spacing(1)
}

/// The table of workers. In a narrow area it drops the last columns, rather than to cut numbers.
fn worker_table(workers: &[WorkerRates], width: u16) -> Table<'static> {
    let heads = [
        ("worker", 6),
        ("processor", 9),
        ("load", 6),
        ("rx pkt/s", RATE),
        ("sent/s", RATE),
        ("dropped/s", RATE),
        ("punted/s", RATE),
        ("pkt/burst", RATE),
    ];
    let ends = heads.iter().scan(0, |end, (_, width)| {
        *end += width + 1;
        Some(*end - 1)
    });
    let shown = ends.take_while(|end| *end <= width).count();
    let header = right(heads.iter().take(shown).map(|(head, _)| *head), 1);
    let number = |number: Option<f64>, unit| {
        number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}{unit}"))
    };
    let row = |worker: &WorkerRates| {
        let processor = worker.processor.map_or_else(|| "-".to_owned(), |core| core.to_string());
        let WorkerRates { received, sent, dropped, punted, .. } = *worker;
        let words = [worker.worker.to_string(), processor, number(worker.load_percent, "%")];
        let rates = [received, sent, dropped, punted].map(si);
        let fill = number(worker.packets_per_burst, "");
        right(words.into_iter().chain(rates).chain([fill]).take(shown), 1)
    };
    let widths = heads.iter().take(shown).map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(workers.iter().map(row), widths);
    table.header(header.style(BOLD)).column_spacing(1)
}

/// The widest columns of a reason's rate and of its count.
const REASON_RATE: u16 = 8;
const COUNT: u16 = 15;

fn reason_table(title: &'static str, reasons: &[Reason], width: u16) -> Table<'static> {
    let count = COUNT.min(width.saturating_sub(REASON_RATE + 2));
    let row = |reason: &Reason| {
        right([reason.name.clone(), si(reason.rate), within(reason.count, count)], 1)
    };
    let widths = [Constraint::Fill(1), Constraint::Length(REASON_RATE), Constraint::Length(count)];
    let header = right([title, "/s", "in all"], 1).style(BOLD);
    Table::new(reasons.iter().map(row), widths).header(header).column_spacing(1)
}

fn draw_tolls(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let ns = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.1}"));
    let stages = rates.tolls.iter().map(|toll| (toll.stage.clone(), ns(toll.now), ns(toll.ever)));
    let stages = stages.map(|(stage, now, ever)| right([stage, now, ever], 1));
    let widths = [Constraint::Fill(1), Constraint::Length(7), Constraint::Length(9)];
    let header = right(["toll, ns/pkt", "now", "ever"], 1).style(BOLD);
    let tolls = Table::new(stages, widths).header(header).column_spacing(1);
    let rows = [Constraint::Length(rates.tolls.len() as u16 + 2), Constraint::Min(0)];
    let [above, below] = Layout::vertical(rows).areas(area);
    frame.render_widget(tolls, above);
    if rates.xdp.is_empty() {
        return;
    }
    // Its counters are wider than a toll.
    let width = COUNT.min(area.width.saturating_sub(1));
    let rows = rates
        .xdp
        .iter()
        .map(|(name, count)| right([name.replace('_', " "), within(*count, width)], 1));
    let header = right(["XDP path", ""], 1).style(BOLD);
    let widths = [Constraint::Fill(1), Constraint::Length(width)];
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), below);
}

/// A count within a width: exact, or rounded if too wide.
fn within(count: u64, width: u16) -> String {
    let whole = thousands(count);
    if whole.len() <= usize::from(width) { whole } else { si(count as f64) }
}

/// A row; the cells after the first `words` ones are aligned to the right.
fn right(cells: impl IntoIterator<Item = impl Into<String>>, words: usize) -> Row<'static> {
    let cell = |(index, cell): (usize, _)| {
        let line = Line::from(Into::<String>::into(cell));
        Cell::from(if index < words { line } else { line.right_aligned() })
    };
    Row::new(cells.into_iter().enumerate().map(cell).collect::<Vec<_>>())
}
