//! What the exchange cost: bytes and seconds.

use super::super::summary::{Total, bytes, gradient_ratio, seconds, times, total_ratio};
use super::super::{Report, Run};
use super::markup::{bars, glossary, note};

/// Which bytes went out.
pub(super) fn traffic(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Bytes sent</h2>\n");
    if report.settings.nodes == 1 {
        out.push_str("<p>Nothing: a single node has nobody to send to.</p>\n</section>\n");
        return;
    }
    let sockets = report.runs.iter().any(|run| run.bytes.udp > 0);
    let sites = report.settings.inner_codec.is_some();
    // What it is, how much of it a run sent, and whether there is anything to show.
    type Kind = (&'static str, fn(&Run) -> u64, bool);
    let kinds: [Kind; 5] = [
        ("gradient packets", |run| run.bytes.gradient_packets, true),
        ("parameters (f32)", |run| run.bytes.parameter_packets, true),
        ("of these, between sites", |run| run.bytes.wan_packets, sites),
        ("all frames", |run| run.bytes.frames, true),
        ("UDP at the socket", |run| run.bytes.udp, sockets),
    ];
    let kinds = || kinds.iter().filter(|(_, _, shown)| *shown);
    let most = kinds().flat_map(|(_, of, _)| report.runs.iter().map(of)).max().unwrap_or(0).max(1);
    for (kind, of, _) in kinds() {
        bars(out, report, kind, most as f64, |run| (of(run) as f64, bytes(of(run))));
    }
    let mut text = "One direction, all ranks and steps together.".to_owned();
    if !sockets {
        text += " This run had no sockets, so no UDP.";
    }
    if let (Some(gradients), Some((all, total))) = (gradient_ratio(report), total_ratio(report)) {
        let [first, second] = [0, 1].map(|index| &report.runs[index].codec.label);
        let what = match total {
            Total::Udp => "bytes by UDP",
            Total::Frames => "bytes of frames",
        };
        text += &format!(
            " Of {first}, gradient bytes are {} {second}, {what} in all {} {second}: the new parameters travel as f32 with \
             either codec today.",
            times(gradients),
            times(all)
        );
    }
    note(out, &text);
    out.push_str("</section>\n");
}

/// Where the time went.
pub(super) fn stages(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Time by stage</h2>\n");
    type Stage = (&'static str, fn(&Run) -> f64);
    let stages: [Stage; 6] = [
        ("compute", |run| run.seconds.stages.compute),
        ("encode", |run| run.seconds.stages.encode),
        ("exchange", |run| run.seconds.stages.exchange),
        ("average", |run| run.seconds.stages.average),
        ("optimizer", |run| run.seconds.stages.optimizer),
        ("gather", |run| run.seconds.stages.gather),
    ];
    let most = stages.iter().flat_map(|(_, of)| report.runs.iter().map(of)).fold(1e-9, f64::max);
    for (stage, of) in stages {
        bars(out, report, stage, most, |run| (of(run), seconds(of(run))));
    }
    let totals: Vec<String> =
        report.runs.iter().map(|run| format!("{} {}", run.codec.label, seconds(run.seconds.total))).collect();
    note(
        out,
        &format!(
            "Wall-clock time over all steps, mean of the ranks. From first step to last: {}.",
            totals.join(", ")
        ),
    );
    glossary(out, &stages.map(|(stage, _)| stage));
    out.push_str("</section>\n");
}
