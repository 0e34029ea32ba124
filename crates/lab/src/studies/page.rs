//! A study's result as a self-contained page.

use super::picture::{draw, escaped};
use super::report::Outcome;
use super::text::render;

/// The page as HTML.
pub(super) fn page(of: &Outcome) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{name}</title>\n\
         <style>body{{font:15px/1.4 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}}\
         pre{{overflow-x:auto}}svg{{max-width:100%;height:auto}}</style>\n\
         <h1>{name}</h1>\n<p>{}</p>\n{}<pre>{}</pre>\n</html>\n",
        escaped(of.question),
        draw(of),
        escaped(&render(of)),
        name = of.study,
    )
}
