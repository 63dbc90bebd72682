use super::*;

const NASTY: &str = "\"><script>x</script>&\u{202e}\u{7f}";

fn chart() -> Chart {
    let mark = |x: f64, y: f64| Mark { x, y, about: format!("{NASTY} {x}") };
    let series = Series {
        name: NASTY.into(),
        look: Look::Kind(2),
        points: vec![mark(10.0, 2.0), mark(100.0, 7.5), mark(f64::INFINITY, 4.0)],
        line: vec![(10.0, 2.0), (100.0, 8.0)],
        line_about: NASTY.into(),
        strokes: vec![[20.0, 30.0, 1.0]],
        // The second has no room, the third is near the end.
        labels: [10.0, 10.0, 100.0].map(|x| (x, 2.0, NASTY.to_owned())).to_vec(),
    };
    let mut x = Scale::new("length (tokens)", ScaleKind::Log);
    x.beyond = Some("never");
    let panel = Panel { x, y: Scale::new("time (ms)", ScaleKind::Zero), series: vec![series], height: 200.0 };
    Chart { title: NASTY.into(), about: "About it.".into(), panels: vec![panel], notes: vec![NASTY.into()] }
}

fn both(chart: &Chart) -> [String; 2] {
    let (mut whole, mut part) = (Vec::new(), Vec::new());
    file(&mut whole, chart).unwrap();
    figure(&mut part, chart, "id").unwrap();
    [whole, part].map(|out| String::from_utf8(out).unwrap())
}

/// The number after a text.
fn after(text: &str, what: &str) -> f64 {
    let rest = &text[text.find(what).unwrap() + what.len()..];
    rest.split(|c: char| c != '-' && c != '.' && !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn marks_are_where_the_ticks_say() {
    for svg in both(&chart()) {
        let x_axis = svg.split("class=\"x-axis\"").nth(1).unwrap().split("</g>").next().unwrap();
        let tick = |name: &str| {
            let text = x_axis.lines().find(|l| l.ends_with(&format!(">{name}</text>"))).unwrap();
            after(text, "x=\"")
        };
        let marks = svg.split("class=\"marks\"").nth(1).unwrap().split("</g>").next().unwrap();
        let at: Vec<f64> =
            marks.lines().skip(1).filter(|l| l.contains("d=\"M")).map(|l| after(l, "d=\"M")).collect();
        assert_eq!(at.len(), 3);
        assert!((at[0] - tick("10")).abs() < 0.2 && (at[1] - tick("100")).abs() < 0.2, "{at:?}");
        assert!(at[2] > at[1] && (at[2] - tick("never")).abs() < 0.2, "{at:?}");
        assert_eq!(svg.matches("class=\"label\"").count(), 2, "one has no room");
        let stroke = after(&svg, "class=\"strokes\" d=\"M");
        assert!(at[0] < stroke && stroke < at[1], "{stroke}");
        assert!(svg.contains(">length (tokens), logarithmic</text>") && svg.contains(">time (ms)</text>"));
    }
}

#[test]
fn names_are_text_and_the_drawing_is_always_the_same() {
    for (svg, again) in both(&chart()).into_iter().zip(both(&chart())) {
        assert_eq!(svg, again);
        assert!(!svg.contains("<script") && !svg.contains(['\u{202e}', '\u{7f}']), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 4, "a tooltip on each mark and line");
        assert!(svg.contains("&quot;&gt;&lt;script&gt;"));
    }
}

#[test]
fn nothing_to_draw_is_drawn() {
    let series = Series::default();
    for kind in [ScaleKind::Zero, ScaleKind::Around, ScaleKind::Log, ScaleKind::Each] {
        let scale = Scale::new("x", kind);
        let panel = Panel { x: scale.clone(), y: scale, series: vec![series.clone()], height: 10.0 };
        let odd = Series {
            points: [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e300]
                .map(|v| Mark { x: v, y: v, about: String::new() })
                .to_vec(),
            strokes: vec![[f64::NAN; 3], [0.0, f64::INFINITY, 1.0], [0.0, 1e300, 1.0]],
            labels: [f64::NAN, f64::INFINITY, 1e300].map(|v| (v, v, "n".to_owned())).to_vec(),
            ..Series::default()
        };
        let hard = Panel { series: vec![odd], ..panel.clone() };
        for svg in both(&Chart { panels: vec![panel, hard], ..Chart::default() }) {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{kind:?} {svg}");
        }
    }
}
