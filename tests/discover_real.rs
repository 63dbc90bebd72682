//! Discovery against real engines: their tables, layouts and probe points as known from source and measurement.
//! Needs `PROFINFER_ENGINES`, a directory with unpacked engine packages; without it the tests say so and pass.
#![cfg(feature = "agent")]
use profinfer::agent::*;
#[test]
fn dump() {
    for a in std::env::var("F").unwrap_or_default().split_whitespace() {
        let t = std::time::Instant::now();
        match discover::of_path(a.as_ref()) {
            Err(e) => println!("{a}: {e}"),
            Ok(engines) => {
                for e in engines {
                    println!("== {:?} {} ops {}", e.machine, e.layout, e.tables.ops.len());
                    for m in &e.modules {
                        println!("  {} {:?} {}", m.path_in_target.display(), m.roles, m.build_id);
                    }
                    let l = ladder::Ladder::of(&e);
                    for r in [l.token, l.graph, l.split, l.cpu_graph, l.op, l.op_end].iter().flatten() {
                        println!("  {} {:?}", r.name, r.how);
                        let mut last = 99;
                        for p in &r.points {
                            if p.module > last && last != 0 && p.module > 4 {
                                continue;
                            };
                            last = p.module;
                            println!(
                                "     {} m{} {:x} +{} {} {:?} [{}] ret {:?} args {} {:?}",
                                p.symbol,
                                p.module,
                                p.sym_file_offset,
                                p.entry.offset,
                                p.entry.insn,
                                p.entry.cost,
                                p.entry.why,
                                p.ret.as_ref().map(|r| (r.offset, &r.insn[..], r.cost)),
                                p.n_args,
                                p.batch
                            );
                        }
                    }
                }
            }
        }
        println!("{:?}", t.elapsed());
    }
}
