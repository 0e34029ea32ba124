//! Hand-written SVG: what all pictures need.

use std::fmt::Write as _;

/// A picture under construction.
pub(crate) struct Svg {
    body: String,
    /// Width and height.
    size: (f64, f64),
}

/// Where a text lies relative to its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), size: (width, height) }
    }

    /// Adds a box; `at` is its top left corner.
    pub(crate) fn rect(&mut self, at: (f64, f64), size: (f64, f64), fill: &str, title: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" rx=\"1.5\">{}</rect>",
            at.0,
            at.1,
            size.0.max(0.2),
            size.1,
            tooltip(title)
        );
    }

    pub(crate) fn text(&mut self, at: (f64, f64), size: f64, anchor: Anchor, text: &str) {
        self.coloured_text(at, size, anchor, "#222", text);
    }

    pub(crate) fn coloured_text(
        &mut self,
        at: (f64, f64),
        size: f64,
        anchor: Anchor,
        colour: &str,
        text: &str,
    ) {
        let _ = writeln!(
            self.body,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\" text-anchor=\"{}\" fill=\"{colour}\">{}</text>",
            at.0,
            at.1,
            anchor.name(),
            escaped(text)
        );
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// Adds an element verbatim.
    pub(crate) fn raw(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// The whole picture.
    pub(crate) fn done(&self) -> String {
        let (width, height) = self.size;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn tooltip(title: &str) -> String {
    if title.is_empty() {
        return String::new();
    }
    format!("<title>{}</title>", escaped(title))
}

/// A text with the characters that XML and HTML reserve escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML cannot represent these characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The approximate width of a text in sans-serif type of that size.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

/// A text cut to a width. Empty if nothing readable fits.
pub(crate) fn fitted(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let letters = (room / (size * 0.62)) as usize;
    if letters < 4 {
        return String::new();
    }
    text.chars().take(letters - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_can_hold_anything() {
        assert_eq!(escaped("<a & \"b\">\u{1}"), "&lt;a &amp; &quot;b&quot;&gt;\u{fffd}");
        let mut svg = Svg::new(10.0, 5.0);
        svg.rect((0.0, 0.0), (1.0, 1.0), "#fff", "<T>");
        svg.text((1.0, 1.0), 10.0, Anchor::End, "a<b");
        let text = svg.done();
        assert!(
            text.contains("<title>&lt;T&gt;</title>") && text.contains(">a&lt;b</text>"),
            "{text}"
        );
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn texts_are_cut_to_their_room() {
        assert_eq!(fitted("abc", 10.0, 100.0), "abc");
        assert_eq!(fitted("abcdefghij", 10.0, 31.0), "abcd…");
        assert_eq!(fitted("abcdefghij", 10.0, 20.0), "");
    }
}
