//! `report.html`: one file that loads nothing, readable in light and dark, on a screen and on a phone.

mod cost;
mod fleet;
mod markup;

use std::fmt::Write;

use super::Report;
use super::curve::{Curve, SIZES, chart, reach};
use super::summary::{Total, gradient_ratio, grouped, loss, more_or_fewer, seconds, total_ratio};
pub(crate) use markup::escape;
use markup::{note, table};

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let mut out = String::new();
    let title = format!("gradwire train: {}", escape(&report.task));
    // Writing into a string can't fail, here and below.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p class=\"lead\">{}</p>\n",
        escape(&lead(report))
    );
    tiles(&mut out, report);
    losses(&mut out, report);
    cost::traffic(&mut out, report);
    cost::stages(&mut out, report);
    fleet::nodes(&mut out, report);
    fleet::codecs(&mut out, report);
    fleet::settings(&mut out, report);
    fleet::files(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// What both runs have in common.
fn lead(report: &Report) -> String {
    let settings = &report.settings;
    let mut parts = vec![
        format!("{} node{}", settings.nodes, if settings.nodes == 1 { "" } else { "s" }),
        format!("{} parameters", grouped(report.params as u64)),
        format!(
            "{} steps of {} \u{d7} {} samples",
            grouped(report.steps),
            settings.nodes,
            grouped(settings.batch.into())
        ),
        settings.optimizer.clone(),
        format!("seed {}", report.seed),
    ];
    parts.extend(settings.data.as_ref().map(|data| data.file.clone()));
    parts.join(" \u{b7} ")
}

/// The figures that matter most: an even number of them, so that no row of two is left open.
fn tiles(out: &mut String, report: &Report) {
    let mut tiles = Vec::new();
    if let (Some(gradients), Some((all, total))) = (gradient_ratio(report), total_ratio(report)) {
        let [first, second] = [0, 1].map(|index| &report.runs[index].codec.label);
        let what = match total {
            Total::Udp => "bytes in all (UDP)",
            Total::Frames => "bytes in all (frames)",
        };
        for (ratio, what) in [(gradients, "gradient bytes"), (all, what)] {
            let (figure, word) = more_or_fewer(ratio);
            tiles.push((format!("{figure} \u{d7}"), format!("{word} {what}, {first} against {second}")));
        }
    }
    for run in &report.runs {
        let (name, value) = run.score.show();
        tiles.push((value, format!("evaluation {name}, {}", run.codec.label)));
    }
    for run in &report.runs {
        tiles.push((seconds(run.seconds.step_median), format!("median step, {}", run.codec.label)));
    }
    let _ = writeln!(out, "<div class=\"tiles of{}\">", tiles.len());
    for (value, label) in tiles {
        let _ = writeln!(
            out,
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(&value),
            escape(&label)
        );
    }
    out.push_str("</div>\n");
}

fn losses(out: &mut String, report: &Report) {
    let curves: Vec<Curve<'_>> =
        report.runs.iter().map(|run| Curve { name: &run.codec.label, values: &run.losses }).collect();
    out.push_str("<section>\n<h2>Training loss</h2>\n<p class=\"legend\">");
    for (index, curve) in curves.iter().enumerate() {
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 34 12\" aria-hidden=\"true\"><path class=\"smooth run{index}\" d=\"M0 6H34\"/></svg>\
             {}</span>",
            escape(curve.name)
        );
    }
    out.push_str("</p>\n<figure>\n");
    for size in &SIZES {
        out.push_str(&chart(&curves, size));
    }
    out.push_str("</figure>\n");
    let reach = reach(curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0));
    let mut text = "Mean cross entropy of all ranks' batches in nats, logarithmic.".to_owned();
    if reach > 0 {
        text += &format!(" Thick: mean over {} steps around each; thin: every step.", 2 * reach + 1);
    }
    note(out, &text);
    let score = report.runs.first().map_or("score", |run| run.score.show().0);
    table(
        out,
        &["codec", "first step", "last step", "evaluation", score],
        report.runs.iter().map(|run| {
            vec![
                run.codec.label.clone(),
                loss(run.loss.first),
                loss(run.loss.last),
                loss(run.loss.eval),
                run.score.show().1,
            ]
        }),
    );
    out.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use gradwire::codec::{Codec, loco};

    use super::super::{CodecInfo, Loss, Residual, Run, RunSeconds, ScoreField};
    use super::super::{DataFile, Settings};
    use super::*;
    use crate::args::ScaleArg;
    use crate::event::{Bytes, Node, Seconds};

    const EVIL: &str = "<script src=\"http://x\">alert('&')</script>";

    fn run(codec: CodecInfo, gradient_packets: u64) -> Run {
        Run {
            codec,
            nodes: vec![Node { rank: 0, backend: "gpu".into(), adapter: Some(EVIL.into()), owned: 1 }],
            loss: Loss { first: 1.0, last: f64::NAN, eval: 0.1 },
            score: ScoreField::Accuracy { eval_accuracy: 1.0 },
            bytes: Bytes {
                gradient_packets,
                parameter_packets: 80,
                wan_packets: 0,
                frames: gradient_packets + 80,
                udp: 0,
            },
            seconds: RunSeconds { stages: Seconds::default(), step_median: 0.0, total: 0.0 },
            residual: Residual::default(),
            parameters_blake3: "00".into(),
            losses: vec![1.0],
        }
    }

    fn report(nodes: u32, runs: Vec<Run>) -> Report {
        Report {
            version: "0",
            wire_version: 1,
            task: EVIL.into(),
            params: 1,
            steps: 1,
            seed: 0,
            settings: Settings {
                batch: 1,
                learning_rate: 0.1,
                optimizer: "sgd".into(),
                warmup: None,
                weight_decay: 0.0,
                scale: ScaleArg::Auto,
                mesh: EVIL.into(),
                nodes,
                sites: Vec::new(),
                inner_codec: None,
                shares: "equal".into(),
                deadline_seconds: 10.0,
                data: Some(DataFile { file: EVIL.into(), bytes: Some(1) }),
            },
            runs,
        }
    }

    fn loco() -> CodecInfo {
        CodecInfo::new(&Codec::Loco(loco::Config::default()).into(), "loco", true, Some(1))
    }

    fn f32() -> CodecInfo {
        CodecInfo::new(&Codec::F32.into(), "f32", true, None)
    }

    #[test]
    fn nothing_from_outside_is_markup_and_nothing_is_loaded() {
        let page = page(&report(2, vec![run(loco(), 10), run(f32(), 80)]));
        assert!(!page.contains("<script"), "{page}");
        for loader in ["src=\"", "href=", "@import", "url("] {
            assert!(!page.contains(loader), "{loader} in {page}");
        }
    }

    #[test]
    fn what_is_saved_in_all_stands_beside_what_is_saved_in_gradients() {
        let page = page(&report(2, vec![run(loco(), 10), run(f32(), 80)]));
        assert!(page.contains("<b>8.00 \u{d7}</b><span>fewer gradient bytes, loco"), "{page}");
        assert!(page.contains("<b>1.78 \u{d7}</b><span>fewer bytes in all (frames), loco"), "{page}");
        assert!(page.contains("parameters travel as f32"), "{page}");
    }

    #[test]
    fn a_single_node_has_no_bars_of_bytes() {
        let page = page(&report(1, vec![run(loco(), 0), run(f32(), 0)]));
        assert!(page.contains("nobody to send to") && !page.contains("gradient packets"), "{page}");
    }
}
