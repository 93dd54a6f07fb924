//! The metrics of one process.

use netacc_stats::reader::{self, Error};
use serde_json::{Map, Value, json};

use crate::args::Group;
use crate::{cfg, cnt, mem, qp, sock, time};

/// The groups asked for, as text or JSON.
pub(crate) fn process(pid: u32, groups: &[Group], json: bool) -> Result<String, Error> {
    let page = reader::open(pid)?;
    let memory = if groups.contains(&Group::Mem) { Some(mem::read(pid)?) } else { None };
    if json {
        let mut map = Map::new();
        map.insert("pid".into(), json!(pid));
        map.insert("program".into(), json!(page.program));
        map.insert("version".into(), json!(page.library_version));
        map.insert("since".into(), json!(time::utc(page.start_ns)));
        for group in groups {
            let (name, value) = match group {
                Group::All => continue,
                Group::Cfg => ("cfg", cfg::json(&page)),
                Group::Cnt => ("cnt", cnt::json(&page)),
                Group::Mem => ("mem", memory.as_ref().map(mem::Memory::json).into()),
                Group::Qp => ("qp", qp::json(&page)),
                Group::Sock => ("sock", sock::json(&page)),
            };
            map.insert(name.into(), value);
        }
        return Ok(format!("{:#}\n", Value::Object(map)));
    }
    let mut out = String::new();
    for group in groups {
        if groups.len() > 1 {
            if !out.is_empty() {
                out.push('\n');
            }
            let title = match group {
                Group::All => continue,
                Group::Cfg => "configuration (cfg):\n",
                Group::Cnt => "counters (cnt):\n",
                Group::Mem => "memory (mem):\n",
                Group::Qp => "queue pairs (qp):\n",
                Group::Sock => "sockets (sock):\n",
            };
            out.push_str(title);
        }
        match group {
            Group::All => {}
            Group::Cfg => cfg::text(&page, &mut out),
            Group::Cnt => cnt::text(&page, &mut out),
            Group::Mem => memory.iter().for_each(|memory| memory.text(&mut out)),
            Group::Qp => qp::text(&page, &mut out),
            Group::Sock => sock::text(&page, &mut out),
        }
    }
    Ok(out)
}
