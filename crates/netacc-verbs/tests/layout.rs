//! Compares our declarations with the installed headers: a C program made from the same table prints the compiler's
//! sizes, offsets and constants, and every number must be the same.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use netacc_verbs::sys::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::process::Command;

/// A structure: its C name, its size unless only a prefix is declared, and each field with offset and size.
struct Layout {
    name: &'static str,
    size: Option<usize>,
    fields: Vec<(&'static str, usize, usize)>,
}

/// The size of the field that `_get` returns a reference to, without making a structure.
fn field_size<S, F>(_get: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The layouts of structures with all of their fields: if a field is left out, it does not compile. `prefix` stands for
/// a structure that we only read.
macro_rules! layouts {
    ($($kind:ident $name:ident { $($field:ident),* $(,)? })*) => {
        vec![$({
            // The pattern is exhaustive, so the compiler names a field that is missing.
            #[allow(dead_code, reason = "only has to compile")]
            fn every_field($name { $($field: _),* }: &$name) {}
            Layout {
                name: stringify!($name),
                size: layouts!(@size $kind $name),
                fields: vec![$((stringify!($field), offset_of!($name, $field), field_size(|s: &$name| &s.$field))),*],
            }
        }),*]
    };
    (@size whole $name:ident) => { Some(size_of::<$name>()) };
    (@size prefix $name:ident) => { None };
}

fn layouts() -> Vec<Layout> {
    layouts! {
        prefix ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        whole ibv_context_ops {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr,
            _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq,
            req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq,
            _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp,
            _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
            _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event,
        }
        prefix ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
        prefix ibv_pd { context }
        prefix ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        prefix ibv_comp_channel { context, fd }
        prefix ibv_cq { context, channel, cq_context, handle, cqe }
        prefix ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num }
        whole ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        whole ibv_sge { addr, length, lkey }
        whole ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type, bind_mw }
        whole ibv_recv_wr { wr_id, next, sg_list, num_sge }
        whole ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        whole ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        whole ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        whole ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        whole ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        whole ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt,
        }
        whole ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        whole ibv_async_event { element, event_type }
        whole sockaddr_storage { bytes }
        whole rdma_ib_addr { sgid, dgid, pkey }
        whole rdma_addr { src_storage, dst_storage, addr }
        whole rdma_route { addr, path_rec, num_paths }
        whole rdma_event_channel { fd }
        prefix rdma_cm_id { verbs, channel, context, qp, route, ps, port_num }
        whole rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        prefix rdma_cm_event { id, listen_id, event, status, conn }
    }
}

/// The C name of a field, which differs for some; empty if C has no such field.
fn c_field(structure: &str, field: &'static str) -> &'static str {
    match (structure, field) {
        ("rdma_cm_event", "conn") => "param.conn",
        ("sockaddr_storage", "bytes") => "",
        _ => field,
    }
}

/// Our declarations: a C expression for each number, and the number.
fn ours() -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    let mut add = |expression: String, value: usize| all.extend([(expression, value as i64)]);
    for Layout { name, size, fields } in layouts() {
        if let Some(size) = size {
            add(format!("sizeof(struct {name})"), size);
        }
        for (field, offset, size) in fields {
            let field = c_field(name, field);
            if !field.is_empty() {
                add(format!("offsetof(struct {name}, {field})"), offset);
                add(format!("sizeof(((struct {name} *)0)->{field})"), size);
            }
        }
    }
    add("_Alignof(struct sockaddr_storage)".into(), align_of::<sockaddr_storage>());
    all.extend(CONSTANTS.iter().map(|(name, value)| (name.to_string(), *value)));
    all
}

/// A type of our declarations as C spells it. An enumeration is an unsigned int in both.
fn c_type(rust: &str) -> String {
    match rust {
        "" | "c_void" => "void".into(),
        "c_int" => "int".into(),
        "c_uint" => "unsigned int".into(),
        "c_char" => "char".into(),
        "u8" => "uint8_t".into(),
        "usize" => "size_t".into(),
        _ => match (rust.strip_prefix("*mut "), rust.strip_prefix("*const ")) {
            (Some(to), _) => format!("{} *", c_type(to)),
            (_, Some(to)) => format!("const {} *", c_type(to)),
            _ => format!("struct {rust}"),
        },
    }
}

/// Our prototypes in C. The compiler refuses one that differs from the headers', which come before it.
fn c_prototypes() -> String {
    let mut text = String::new();
    for Prototype { name, arguments, result } in Verbs::PROTOTYPES.iter().chain(Cma::PROTOTYPES) {
        let arguments: Vec<String> = arguments.iter().map(|a| c_type(a)).collect();
        let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
        // The library's function fills the beginning of the structure, under another name.
        let arguments = match *name {
            "ibv_query_port" => arguments.replace("struct ibv_port_attr", "struct _compat_ibv_port_attr"),
            _ => arguments,
        };
        // In brackets, because some names are macros too.
        writeln!(text, "{} ({name})({arguments});", c_type(result)).unwrap();
    }
    text
}

/// Checks the types of the operations that we call: each is assigned to a pointer of our type.
const OPERATIONS: &str = "static __attribute__((unused)) void operations(struct ibv_context_ops *ops)
{
\tint (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *) = ops->poll_cq;
\tint (*req_notify_cq)(struct ibv_cq *, int) = ops->req_notify_cq;
\tint (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **) = ops->post_send;
\tint (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **) = ops->post_recv;
\t(void)poll_cq, (void)req_notify_cq, (void)post_send, (void)post_recv;
}
";

/// The C compiler's values of the same expressions. Compiling them also compares the prototypes.
fn theirs(expressions: impl Iterator<Item = String>) -> BTreeMap<String, i64> {
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\n");
    source += &c_prototypes();
    source += OPERATIONS;
    source += "int main(void)\n{\n";
    for expression in expressions {
        writeln!(source, "\tprintf(\"%s\\t%lld\\n\", \"{expression}\", (long long)({expression}));").unwrap();
    }
    source += "\treturn 0;\n}\n";
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).unwrap();
    let built =
        Command::new("cc").args(["-Wall", "-Werror", "-Wno-enum-int-mismatch", "-o"]).arg(&program).arg(&file).output();
    let built = built.expect("a C compiler named cc (scripts/deps rdma installs one)");
    assert!(
        built.status.success(),
        "the headers of libibverbs-dev and librdmacm-dev are missing (scripts/deps rdma installs them) or differ:\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let printed = Command::new(&program).output().unwrap().stdout;
    let lines = String::from_utf8(printed).unwrap();
    lines.lines().map(|line| line.split_once('\t').unwrap()).map(|(e, v)| (e.to_string(), v.parse().unwrap())).collect()
}

#[test]
fn sizes_offsets_constants_and_prototypes() {
    let ours = ours();
    let theirs = theirs(ours.keys().cloned());
    assert_eq!(ours.len(), theirs.len());
    let differ: Vec<_> = ours.iter().filter(|(e, v)| theirs.get(*e) != Some(v)).collect();
    for (expression, value) in &differ {
        eprintln!("{expression}: {value} here, {:?} in C", theirs.get(*expression));
    }
    assert!(differ.is_empty(), "{} of {} numbers differ", differ.len(), ours.len());
}
