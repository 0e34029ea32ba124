//! The toll table as a self-contained page: one HTML file that includes its pictures.

mod bars;
mod stages;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::against::Against;
use super::table::title;
use super::{Group, Row, Tolls};
use crate::plot::{Growth, Line};
use crate::svg::escaped;
use bars::Bar;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,'DejaVu Sans',Helvetica,Arial,sans-serif;color:#222;background:#fff;\
margin:2rem auto;max-width:1180px;padding:0 1rem}\
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.4rem 0 .4rem}\
p{margin:.3rem 0 .8rem;color:#444}svg{max-width:100%;height:auto;display:block}\
.table{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13.5px}\
th,td{padding:.2rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid #e6e6e6}\
th{border-bottom:2px solid #999;font-weight:600}td.l,th.l{text-align:left}\
tr.g td{text-align:left;font-weight:600;padding-top:.9rem}.slower{color:#b3261e}.faster{color:#1b6e3c}";

/// Writes a run as a page.
///
/// # Errors
/// A message, if it cannot be drawn or written.
pub fn write(tolls: &Tolls, path: &Path) -> Result<(), String> {
    fs::write(path, page(tolls)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// Checks that a page can be written there before anything is measured. An existing file stays.
///
/// # Errors
/// A message, if it cannot be written.
pub fn check(path: &Path) -> Result<(), String> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))?;
    if is_new {
        // The page is created again later. If not, no empty file stays behind.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// The whole page.
fn page(tolls: &Tolls) -> Result<String, String> {
    let report = &tolls.report;
    let machine = &report.machine;
    let rounds = report.rows.first().map_or(0, |row| row.rounds_ns.len());
    let mut body = format!(
        "<h1>What a packet pays</h1>\n<p>{}, kernel {}, path {}, TSC {:.0} MHz. Built by {}, commit {}. \
         64-byte frames, memory to memory on one core, {rounds} rounds.</p>\n",
        escaped(&machine.cpu),
        escaped(&machine.kernel),
        escaped(&machine.level),
        machine.tsc_mhz,
        escaped(report.compiler),
        escaped(report.commit),
    );
    if let Some(against) = &tolls.against {
        body += &changes(against);
    }
    body += &costs(&report.rows);
    body += &section(
        "Where the time goes",
        "Nanoseconds a packet by stage, as sampled while it ran. What is missing to the row's whole time is \
         spent between the stages: at ports, and handing bursts over.",
        &stages::draw(&report.rows, machine.ns_per_clock()),
    );
    body += &growths(tolls)?;
    body += "<h2>All rows</h2>\n";
    body += &table(&report.rows);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Tollway: what a packet pays</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    ))
}

/// A heading, a description and a picture; empty without a picture.
fn section(heading: &str, words: &str, picture: &str) -> String {
    if picture.is_empty() {
        return String::new();
    }
    // Inside HTML, SVG needs no namespace.
    let picture = picture.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    format!("<h2>{heading}</h2>\n<p>{words}</p>\n{picture}\n")
}

fn costs(rows: &[Row]) -> String {
    let bars = |groups: &[Group]| -> Vec<Bar> {
        rows.iter().filter(|row| groups.contains(&row.scenario.group)).filter_map(bar).collect()
    };
    section(
        "What each feature costs",
        "Nanoseconds a packet that a row takes more than the one it is held against, from rounds in which \
         both took turns; the line is where that lies at 95%.",
        &bars::draw(&bars(&[Group::Path, Group::Feature]), "ns a packet"),
    ) + &section(
        "Small bursts, and everything at once",
        "Small bursts are what a port hands over that has little to do.",
        &bars::draw(&bars(&[Group::Bursts, Group::Workers, Group::All]), "ns a packet"),
    )
}

/// A row's cost.
fn bar(row: &Row) -> Option<Bar> {
    let cost = row.cost.as_ref()?;
    Some(Bar {
        name: row.row.name.to_owned(),
        note: format!("over {}", cost.over),
        title: format!("{}: what it costs over {}", row.row.title, cost.over),
        value: cost.ns,
        interval: cost.interval_ns,
        colour: match row.scenario.group {
            Group::Path => "#7fa8d4",
            Group::Feature => "#1f5fa8",
            _ => "#c84b1a",
        },
    })
}

fn growths(tolls: &Tolls) -> Result<String, String> {
    let lines = |group: Group, names: &[&'static str]| -> Vec<Line> {
        let points = |name: &'static str| {
            let rows = tolls.report.rows.iter().filter(|row| row.scenario.group == group);
            let point = |row: &Row| {
                let (line, size) = row.scenario.growth()?;
                let is_drawn = line == name && size > 0;
                is_drawn.then_some((size as f64, row.row.clocks_per_packet.median))
            };
            (name, rows.filter_map(point).collect::<Vec<_>>())
        };
        names.iter().map(|name| points(name)).filter(|line| line.1.len() > 1).collect()
    };
    let draw = |caption, x, lines: Vec<Line>| {
        if lines.is_empty() {
            return Ok(String::new());
        }
        Growth { caption, x, cpu: &tolls.report.machine.cpu, lines }.draw()
    };
    let routes = draw("As the table grows", "prefixes", lines(Group::Routes, &["IPv4", "IPv6"]))?;
    let rules = draw("As the rules grow", "rules", lines(Group::Rules, &["rules"]))?;
    Ok(section(
        "Tables of all sizes",
        "262,144 destinations drawn from the table, which is made up in the shape of the Internet's.",
        &routes,
    ) + &section(
        "Firewalls of all sizes",
        "Rules of mixed shapes, and 4,096 flows drawn from them.",
        &rules,
    ))
}

fn changes(against: &Against) -> String {
    use crate::verdict::Verdict;
    let colour = |verdict| match verdict {
        Verdict::Slower => "#b3261e",
        Verdict::Faster => "#1b6e3c",
        Verdict::BelowAccuracy => "#aaaaaa",
    };
    let bars: Vec<_> = against
        .rows
        .iter()
        .map(|row| Bar {
            name: row.name.clone(),
            note: row.verdict.words().to_owned(),
            title: format!("{:.2} ns then, {:.2} ns now", row.base_ns, row.head_ns),
            value: row.difference_percent,
            interval: row.interval_ns.map(|ns| ns * 100.0 / row.base_ns),
            colour: colour(row.verdict),
        })
        .collect();
    let notes: String = against.notes.iter().map(|note| format!(" {}.", escaped(note))).collect();
    let words = format!(
        "The change of each row since {} (commit {}), at 95%.{notes} \
         Under {:.0}% nothing is reported.",
        escaped(&against.recorded),
        escaped(&against.commit),
        100.0 * super::against::FLOOR
    );
    section("What has changed", &words, &bars::draw(&bars, "% of the time then"))
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "<div class=\"table\"><table>\n<tr><th class=\"l\">row</th><th>clocks</th><th>ns</th><th>95%</th>\
         <th>costs ns</th><th>95%</th><th class=\"l\">over</th><th class=\"l\">what</th></tr>\n",
    );
    let mut group = None;
    for row in rows {
        let of = row.scenario.group;
        if group.replace(of) != Some(of) {
            let _ = writeln!(text, "<tr class=\"g\"><td colspan=\"8\">{}</td></tr>", title(of));
        }
        let [low, high] = row.interval_ns;
        let (cost, interval, over) = row.cost.as_ref().map_or_else(Default::default, |cost| {
            let [low, high] = cost.interval_ns;
            (format!("{:+.2}", cost.ns), format!("{low:+.2} to {high:+.2}"), cost.over)
        });
        let _ = writeln!(
            text,
            "<tr><td class=\"l\">{}</td><td>{:.1}</td><td>{:.2}</td><td>{low:.2} to {high:.2}</td><td>{cost}</td>\
             <td>{interval}</td><td class=\"l\">{over}</td><td class=\"l\">{}</td></tr>",
            escaped(row.row.name),
            row.row.clocks_per_packet.median,
            row.row.ns_per_packet.median,
            escaped(row.row.title)
        );
    }
    text + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tolls::tests::made;
    use crate::tolls::{against, record};

    fn whole() -> Tolls {
        made(&[
            ("floor", 1.0),
            ("ip4-one-flow", 10.0),
            ("ip4-all-off", 11.0),
            ("ip4-vlan", 15.0),
            ("ip4-fib-1", 12.0),
            ("ip4-fib-1k", 14.0),
            ("ip4-filter-0", 12.0),
            ("ip4-filter-1", 13.0),
            ("ip4-filter-100", 18.0),
        ])
    }

    #[test]
    fn a_place_is_looked_at_and_left_as_it_was() {
        let directory = std::env::temp_dir().join(format!("tollway-page-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let page = directory.join("page.html");
        assert_eq!(check(&page), Ok(()));
        assert!(!page.exists());
        fs::write(&page, "old").unwrap();
        assert_eq!(check(&page), Ok(()));
        assert_eq!(fs::read(&page).unwrap(), b"old");
        assert!(check(&directory.join("none/page.html")).unwrap_err().contains("none/page.html"));
        assert!(check(&directory).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_page_has_every_picture_and_row() {
        let page = page(&whole()).unwrap();
        for part in [
            "What each feature costs",
            "Where the time goes",
            "Tables of all sizes",
            "Firewalls of all sizes",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(
            page.matches("<td class=\"l\">ip4-").count(),
            8 + 7,
            "rows, and what they are held against"
        );
        assert!(page.contains("<td>+4.00</td>"), "the cost of VLANs");
    }

    #[test]
    fn the_page_refers_to_nothing_outside() {
        let mut tolls = whole();
        let directory = crate::tolls::tests::directory("html");
        let path = record::keep(&tolls, &directory).unwrap();
        let kept = record::read(&path).unwrap();
        tolls.against = Some(against::compare(&tolls, &kept, &path));
        let page = page(&tolls).unwrap();
        assert!(page.contains("What has changed"));
        for outside in
            ["http:", "https:", "src=", "href", "url(", "@import", "<script", "<link", "file:"]
        {
            assert!(!page.contains(outside), "{outside}");
        }
        let written = directory.join("page.html");
        write(&tolls, &written).unwrap();
        assert_eq!(fs::read_to_string(&written).unwrap(), page);
        fs::remove_dir_all(&directory).unwrap();
        assert!(write(&tolls, &written).unwrap_err().contains("page.html"));
    }

    #[test]
    fn a_page_of_one_row_has_no_curves() {
        let page = page(&made(&[("ip4-one-flow", 10.0)])).unwrap();
        assert!(!page.contains("Tables of all sizes") && !page.contains("What each feature costs"));
        assert!(page.contains("All rows"));
    }
}
