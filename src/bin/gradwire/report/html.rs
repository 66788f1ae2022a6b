//! `report.html`: one file that loads nothing, readable in light and dark, on a screen and on a phone.

use std::fmt::Write;

use super::curve::{Curve, chart};
use super::summary::{bytes, grouped, ratio, seconds};
use super::{Report, Run};

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let mut out = String::new();
    let title = format!("gradwire train: {}", escape(&report.task));
    let nodes = report.runs.first().map_or(0, |run| run.nodes.len());
    // Writing into a string can't fail, here and below.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p class=\"lead\">{nodes} node{} &middot; {} parameters &middot; {} steps &middot; seed {}</p>\n",
        if nodes == 1 { "" } else { "s" },
        grouped(report.params as u64),
        grouped(report.steps),
        report.seed
    );
    tiles(&mut out, report);
    losses(&mut out, report);
    traffic(&mut out, report);
    stages(&mut out, report);
    fleet(&mut out, report);
    settings(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// The figures that matter most.
fn tiles(out: &mut String, report: &Report) {
    out.push_str("<div class=\"tiles\">\n");
    let mut tile = |value: String, label: String| {
        let _ = writeln!(
            out,
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(&value),
            escape(&label)
        );
    };
    if let Some(ratio) = ratio(report) {
        let [first, second] = [0, 1].map(|index| report.runs[index].codec.name());
        tile(format!("{ratio:.2} \u{d7}"), format!("fewer gradient bytes, {first} against {second}"));
    }
    for run in &report.runs {
        let (name, value) = run.score.show();
        tile(value, format!("evaluation {name}, {}", run.codec.name()));
    }
    for run in &report.runs {
        tile(seconds(run.seconds.step_median), format!("median step, {}", run.codec.name()));
    }
    out.push_str("</div>\n");
}

fn losses(out: &mut String, report: &Report) {
    let curves: Vec<Curve<'_>> =
        report.runs.iter().map(|run| Curve { name: run.codec.name(), values: &run.losses }).collect();
    out.push_str("<section>\n<h2>Training loss</h2>\n");
    legend(out, report);
    let _ = write!(out, "<figure>\n{}</figure>\n", chart(&curves));
    out.push_str(
        "<p class=\"note\">Mean cross entropy of all ranks' batches in nats, logarithmic; strong: running mean over a \
         fiftieth of the steps.</p>\n",
    );
    table(
        out,
        &["", "first step", "last step", "evaluation"],
        report.runs.iter().map(|run| {
            let (name, value) = run.score.show();
            vec![
                run.codec.name().to_owned(),
                format!("{:.4}", run.loss.first),
                format!("{:.4}", run.loss.last),
                format!("{:.4}, {name} {value}", run.loss.eval),
            ]
        }),
    );
    out.push_str("</section>\n");
}

fn legend(out: &mut String, report: &Report) {
    out.push_str("<p class=\"legend\">");
    for (index, run) in report.runs.iter().enumerate() {
        let _ = write!(out, "<span><i class=\"run{index}\"></i>{}</span>", escape(run.codec.name()));
    }
    out.push_str("</p>\n");
}

/// Which bytes went out.
fn traffic(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Bytes sent</h2>\n");
    type Kind = (&'static str, fn(&Run) -> u64);
    let kinds: [Kind; 4] = [
        ("gradient packets", |run| run.bytes.gradient_packets),
        ("parameters (f32)", |run| run.bytes.parameter_packets),
        ("all frames", |run| run.bytes.frames),
        ("UDP at the socket", |run| run.bytes.udp),
    ];
    let most = kinds.iter().flat_map(|(_, of)| report.runs.iter().map(of)).max().unwrap_or(0).max(1);
    for (kind, of) in kinds {
        bars(out, report, kind, most as f64, |run| (of(run) as f64, bytes(of(run))));
    }
    out.push_str("<p class=\"note\">One direction, all ranks and steps together.");
    if let Some(ratio) = ratio(report) {
        let [first, second] = [0, 1].map(|index| report.runs[index].codec.name());
        let _ = write!(out, " {first}'s gradient packets are {ratio:.2} times smaller than {second}'s.");
    }
    if report.runs.iter().all(|run| run.bytes.udp == 0) {
        out.push_str(" This run had no sockets.");
    }
    out.push_str("</p>\n</section>\n");
}

fn stages(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Time by stage</h2>\n");
    type Stage = (&'static str, fn(&Run) -> f64);
    let stages: [Stage; 6] = [
        ("compute", |run| run.seconds.compute),
        ("encode", |run| run.seconds.encode),
        ("exchange", |run| run.seconds.exchange),
        ("average", |run| run.seconds.average),
        ("optimizer", |run| run.seconds.optimizer),
        ("gather", |run| run.seconds.gather),
    ];
    let most = stages.iter().flat_map(|(_, of)| report.runs.iter().map(of)).fold(1e-9, f64::max);
    for (stage, of) in stages {
        bars(out, report, stage, most, |run| (of(run), seconds(of(run))));
    }
    let totals: Vec<String> = report
        .runs
        .iter()
        .map(|run| format!("{} {}", escape(run.codec.name()), seconds(run.seconds.total)))
        .collect();
    let _ = write!(
        out,
        "<p class=\"note\">Wall-clock time over all steps, mean of the ranks; exchange and gather include waiting for \
         slower ranks. First step to last: {}.</p>\n</section>\n",
        totals.join(", ")
    );
}

/// One bar per run under a common label; `of` gives length and text.
fn bars(out: &mut String, report: &Report, label: &str, most: f64, of: impl Fn(&Run) -> (f64, String)) {
    let _ = write!(out, "<div class=\"bars\"><div class=\"label\">{}</div>", escape(label));
    for (index, run) in report.runs.iter().enumerate() {
        let (length, text) = of(run);
        let _ = write!(
            out,
            "<div class=\"bar\"><div class=\"track\"><i class=\"run{index}\" style=\"width:{:.2}%\"></i></div>\
             <span>{} {}</span></div>",
            100.0 * length / most,
            escape(run.codec.name()),
            escape(&text)
        );
    }
    out.push_str("</div>\n");
}

fn fleet(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Nodes</h2>\n");
    if let Some(run) = report.runs.first() {
        table(
            out,
            &["rank", "backend", "adapter"],
            run.nodes.iter().map(|node| {
                vec![
                    node.rank.to_string(),
                    node.backend.clone(),
                    node.adapter.clone().unwrap_or_else(|| "\u{2013}".into()),
                ]
            }),
        );
    }
    out.push_str("</section>\n<section>\n<h2>Codecs</h2>\n");
    table(
        out,
        &["codec", "saturated codes", "non-finite", "resets"],
        report.runs.iter().map(|run| {
            vec![
                run.codec.name().to_owned(),
                grouped(run.residual.saturated),
                grouped(run.residual.nonfinite),
                grouped(run.residual.resets),
            ]
        }),
    );
    for run in &report.runs {
        let parameters = run.codec.parameters();
        if !parameters.is_empty() {
            let _ =
                writeln!(out, "<p class=\"note\">{}: {}</p>", escape(run.codec.name()), escape(&parameters));
        }
        let _ = writeln!(
            out,
            "<p class=\"note\">{}: parameters after the last step, the same on every rank, BLAKE3 <code>{}</code></p>",
            escape(run.codec.name()),
            escape(&run.parameters_blake3)
        );
    }
    out.push_str("</section>\n");
}

fn settings(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Settings</h2>\n<dl>\n");
    for (name, value) in &report.settings {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
    }
    let _ = write!(
        out,
        "<div><dt>gradwire</dt><dd>{}, wire version {}</dd></div>\n</dl>\n</section>\n",
        escape(report.version),
        report.wire_version
    );
}

fn table(out: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect::<String>()
    };
    let _ = write!(
        out,
        "<div class=\"wide\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n",
        cells("th", &mut head.iter().copied())
    );
    for row in rows {
        let _ = writeln!(out, "<tr>{}</tr>", cells("td", &mut row.iter().map(String::as_str)));
    }
    out.push_str("</tbody>\n</table></div>\n");
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
    use super::super::{CodecInfo, Loss, Residual, RunSeconds, ScoreField};
    use super::*;
    use crate::event::{Bytes, Node};

    #[test]
    fn nothing_from_outside_is_markup_and_nothing_is_loaded() {
        let evil = "<script src=\"http://x\">alert('&')</script>";
        let run = Run {
            codec: CodecInfo::F32,
            nodes: vec![Node { rank: 0, backend: "gpu".into(), adapter: Some(evil.into()) }],
            loss: Loss { first: 1.0, last: f64::NAN, eval: 0.1 },
            score: ScoreField::Accuracy { eval_accuracy: 1.0 },
            bytes: Bytes::default(),
            seconds: RunSeconds {
                compute: 0.0,
                encode: 0.0,
                exchange: 0.0,
                average: 0.0,
                optimizer: 0.0,
                gather: 0.0,
                step_median: 0.0,
                total: 0.0,
            },
            residual: Residual::default(),
            parameters_blake3: "00".into(),
            losses: vec![1.0],
        };
        let report = Report {
            version: "0",
            wire_version: 1,
            task: evil.into(),
            params: 1,
            steps: 1,
            seed: 0,
            runs: vec![run],
            settings: vec![("data", evil.into())],
        };
        let page = page(&report);
        assert!(!page.contains("<script"), "{page}");
        for loader in ["src=\"", "href=", "@import", "url("] {
            assert!(!page.contains(loader), "{loader} in {page}");
        }
    }
}
