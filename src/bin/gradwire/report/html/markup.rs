//! What the page's sections are made of.

use std::fmt::Write;

use super::super::{Report, Run};

/// Words that a reader may not know, each with one line on what it means.
const GLOSSARY: [(&str, &str); 10] = [
    ("compute", "the model's forward and backward pass"),
    ("encode", "the gradient becomes packets of a few bits per element"),
    (
        "exchange",
        "every rank sends the others their parts of its gradient; waiting for slower ranks included",
    ),
    ("average", "what came in is decoded and averaged, by every rank for its own part"),
    ("optimizer", "the mean gradient changes the parameters, by every rank for its own part"),
    ("gather", "every rank sends its part of the new parameters, as f32, to all others; waiting included"),
    (
        "saturated codes",
        "the gradient was beyond the largest code at its scale, so that the nearest one was sent; common with a scale per block",
    ),
    ("non-finite", "gradient elements that were NaN or infinite"),
    ("residual", "what was lost or not sent, kept by each rank and added to later gradients"),
    ("resets", "steps after which the residual was set to 0, so that old errors do not linger"),
];

/// `word`, explained on hovering if it is in the glossary.
fn word(word: &str) -> String {
    match meaning(word) {
        Some(meaning) => format!("<abbr title=\"{}\">{}</abbr>", escape(meaning), escape(word)),
        None => escape(word),
    }
}

fn meaning(word: &str) -> Option<&'static str> {
    GLOSSARY.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning)
}

/// What `words` mean, for readers who can't hover.
pub(super) fn glossary(out: &mut String, words: &[&str]) {
    out.push_str("<ul class=\"note\">\n");
    for word in words {
        // Writing into a string can't fail, here and below.
        let _ =
            writeln!(out, "<li><b>{}</b>: {}</li>", escape(word), escape(meaning(word).unwrap_or_default()));
    }
    out.push_str("</ul>\n");
}

/// One bar per run under a common label; `of` gives length and text.
pub(super) fn bars(
    out: &mut String,
    report: &Report,
    label: &str,
    most: f64,
    of: impl Fn(&Run) -> (f64, String),
) {
    let _ = write!(out, "<div class=\"bars\"><div class=\"label\">{}</div>", word(label));
    for (index, run) in report.runs.iter().enumerate() {
        let (length, text) = of(run);
        let _ = write!(
            out,
            "<div class=\"bar\"><div class=\"track\"><i class=\"run{index}\" style=\"width:{:.2}%\"></i></div>\
             <span>{} {}</span></div>",
            100.0 * length / most,
            escape(&run.codec.label),
            escape(&text)
        );
    }
    out.push_str("</div>\n");
}

/// Head and cells are text, not markup.
pub(super) fn table(out: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let head: String = head.iter().map(|cell| format!("<th>{}</th>", word(cell))).collect();
    let _ = write!(out, "<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n");
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out.push_str("</tbody>\n</table></div>\n");
}

/// Names and their values; both are text, not markup.
pub(super) fn pairs(out: &mut String, pairs: &[(&str, String)]) {
    out.push_str("<dl>\n");
    for (name, value) in pairs {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
    }
    out.push_str("</dl>\n");
}

/// A smaller line below something; text, not markup.
pub(super) fn note(out: &mut String, text: &str) {
    let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(text));
}

/// Text that can stand anywhere in HTML, attributes included.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_holds_no_character_that_html_reads() {
        assert_eq!(escape("a<b>&\"c' \u{b5}"), "a&lt;b&gt;&amp;&quot;c&#39; \u{b5}");
        assert_eq!(escape("&lt;"), "&amp;lt;");
    }

    #[test]
    fn cells_heads_and_values_are_escaped() {
        let evil = "<i a=\"'\">";
        let mut out = String::new();
        table(&mut out, &[evil, "resets"], [vec![evil.to_owned()]].into_iter());
        pairs(&mut out, &[(evil, evil.into())]);
        note(&mut out, evil);
        assert!(!out.contains("<i"), "{out}");
        assert_eq!(out.matches("&lt;i a=&quot;&#39;&quot;&gt;").count(), 5, "{out}");
        assert!(out.contains("<abbr title=\"steps after"), "{out}");
    }
}
