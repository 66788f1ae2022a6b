//! Who computed what with which settings, and where the results are.

use super::super::summary::{bytes, grouped};
use super::super::{CodecInfo, Report};
use super::markup::{glossary, note, pairs, table};
use crate::args::ScaleArg;
use crate::event::Node;

/// One row per kind of node: 256 of one kind are no wall.
pub(super) fn nodes(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Nodes</h2>\n");
    let nodes = report.runs.first().map_or(&[][..], |run| &run.nodes);
    table(
        out,
        &["nodes", "backend", "adapter", "ranks"],
        groups(nodes).into_iter().map(|(node, ranks)| {
            vec![
                ranks.len().to_string(),
                node.backend.clone(),
                node.adapter.clone().unwrap_or_else(|| "\u{2013}".into()),
                ranges(&ranks),
            ]
        }),
    );
    out.push_str("</section>\n");
}

/// Nodes that differ, each with the ranks of all that are like it, in rising order.
fn groups(nodes: &[Node]) -> Vec<(&Node, Vec<u32>)> {
    let mut groups: Vec<(&Node, Vec<u32>)> = Vec::new();
    for node in nodes {
        let alike = |known: &Node| known.backend == node.backend && known.adapter == node.adapter;
        match groups.iter_mut().find(|(known, _)| alike(known)) {
            Some((_, ranks)) => ranks.push(node.rank),
            None => groups.push((node, vec![node.rank])),
        }
    }
    groups
}

/// `0-3, 7`.
fn ranges(ranks: &[u32]) -> String {
    let parts: Vec<String> = ranks
        .chunk_by(|one, next| one.checked_add(1) == Some(*next))
        .map(|run| match run {
            [] => String::new(),
            [one] => one.to_string(),
            [first, .., last] => format!("{first}\u{2013}{last}"),
        })
        .collect();
    parts.join(", ")
}

/// What became of the gradients in each codec.
pub(super) fn codecs(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Codecs</h2>\n");
    let has_codes = |codec: &CodecInfo| codec.name != "f32";
    let codes = report.params as f64 * f64::from(report.settings.nodes) * report.steps as f64;
    table(
        out,
        &["codec", "saturated codes", "non-finite", "resets"],
        report.runs.iter().map(|run| {
            let of_codes = |text: String| if has_codes(&run.codec) { text } else { "\u{2013}".into() };
            let saturated = run.residual.saturated;
            vec![
                run.codec.label.clone(),
                of_codes(format!("{} ({})", grouped(saturated), percent(saturated as f64 / codes))),
                grouped(run.residual.nonfinite),
                of_codes(grouped(run.residual.resets)),
            ]
        }),
    );
    if report.runs.iter().any(|run| has_codes(&run.codec)) {
        glossary(out, &["saturated codes", "residual", "resets"]);
    }
    for run in &report.runs {
        let parameters = run.codec.parameters();
        if !parameters.is_empty() {
            note(out, &format!("{}: {parameters}.", run.codec.label));
        }
    }
    out.push_str("</section>\n");
}

/// A share, 0 to 1.
fn percent(share: f64) -> String {
    match share {
        v if v > 0.0 && v < 0.000_05 => "below 0.01 %".into(),
        v => format!("{:.2} %", 100.0 * v),
    }
}

/// What repeats these runs.
pub(super) fn settings(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Settings</h2>\n");
    let settings = &report.settings;
    let mut list = vec![
        ("nodes", settings.nodes.to_string()),
        ("mesh", settings.mesh.clone()),
        ("steps", grouped(report.steps)),
        ("batch", format!("{} samples per rank", settings.batch)),
        ("optimizer", settings.optimizer.clone()),
        ("peak learning rate", settings.learning_rate.to_string()),
        ("weight decay", settings.weight_decay.to_string()),
        (
            "warm-up",
            settings
                .warmup
                .map_or_else(|| "none".to_owned(), |steps| format!("{} steps", grouped(steps.into()))),
        ),
        (
            "scale",
            match settings.scale {
                ScaleArg::Auto => "auto".into(),
                ScaleArg::Log2(log2) => format!("2^{log2}"),
            },
        ),
        ("seed", report.seed.to_string()),
        ("deadline", format!("{} s of silence", settings.deadline_seconds)),
    ];
    if let Some(inner) = &settings.inner_codec {
        let sizes: Vec<String> = settings.sites.iter().map(ToString::to_string).collect();
        list.push(("sites", format!("{} nodes, {inner} inside", sizes.join(", "))));
    }
    if settings.shares != "equal" {
        list.push(("shares", settings.shares.clone()));
    }
    if let Some(data) = &settings.data {
        let size = data.bytes.map_or_else(String::new, |count| format!(", {}", bytes(count)));
        list.push(("data", format!("{}{size}", data.file)));
    }
    list.push(("gradwire", format!("{}, wire version {}", report.version, report.wire_version)));
    pairs(out, &list);
    out.push_str("</section>\n");
}

/// What else the run wrote, and which run's parameters it kept.
pub(super) fn files(out: &mut String, report: &Report) {
    out.push_str("<section>\n<h2>Files of this run</h2>\n");
    let model = match report.runs.as_slice() {
        [first, second, ..] => format!(
            "parameters after the last step of the first run ({0}, from --codec); those of {1} are not kept",
            first.codec.label, second.codec.label
        ),
        [first] => format!("parameters after the last step ({})", first.codec.label),
        [] => "parameters after the last step".into(),
    };
    let files = [
        ("report.html", "this page"),
        ("report.json", "its figures and settings, for scripts"),
        ("steps.jsonl", "loss, bytes and seconds, one line per run, rank and step"),
        ("model.safetensors", &model),
    ];
    table(out, &["file", "content"], files.iter().map(|(file, what)| vec![(*file).into(), (*what).into()]));
    table(
        out,
        &["codec", "BLAKE3 of the last parameters, the same on every rank"],
        report.runs.iter().map(|run| vec![run.codec.label.clone(), run.parameters_blake3.clone()]),
    );
    out.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_nodes_share_a_row_wherever_they_stand() {
        let node = |rank: u32, backend: &str| Node { rank, backend: backend.into(), adapter: None, owned: 1 };
        let nodes: Vec<Node> =
            ["cpu", "cpu", "gpu", "cpu", "gpu"].into_iter().zip(0..).map(|(b, r)| node(r, b)).collect();
        let rows: Vec<(&str, String)> =
            groups(&nodes).into_iter().map(|(node, ranks)| (node.backend.as_str(), ranges(&ranks))).collect();
        assert_eq!(rows, [("cpu", "0\u{2013}1, 3".to_owned()), ("gpu", "2, 4".to_owned())]);
        assert_eq!(ranges(&(0..256).collect::<Vec<_>>()), "0\u{2013}255");
    }

    #[test]
    fn a_small_share_is_not_said_to_be_none() {
        assert_eq!([0.0, 1e-9, 0.0123].map(percent), ["0.00 %", "below 0.01 %", "1.23 %"]);
    }
}
