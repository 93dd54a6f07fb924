"""Selects the cases of RDMA that every run has in the virtual machine, since all of them take too long for a run: those that
depend on a kernel's driver, the real libraries or the removal of a device. Every run has the other cases on the library of
crates/netacc-fabric (tests/fabric).
"""

# These run on soft RoCE. They include all modules and cases that tests/fabric leaves out, except those of NEITHER.
ALWAYS = """verbs devices check.a_server_is_reached_by_rdma apps strangers settings.no_memory_to_lock settings.prefork
    conformance.every_call conformance.endpoints_whose_queue_pairs_fail storm.storm
    transport.redis_benchmark transport.bulk transport.fork_per_connection transport.exec_of_another_program
    transport.killed transport.device_removed transport.silent_host
    faults.peer_is_killed faults.a_device_is_removed_under_load faults.the_path_of_rdma_falls_silent""".split()
# These run on soft iWARP too.
BOTH = """verbs.pingpong conformance.every_call transport.redis_benchmark transport.half_close transport.fork_per_connection
    faults.what_a_killed_process_had_written""".split()
# Each run has this number of the other cases on soft RoCE, chosen at random.
BY_LOT = 6
# Only a whole run has these, which test the machine itself and of which some take minutes.
NEITHER = """bench.matrix check.why_a_server_is_not_reached devices.rping devices.rc_pingpong
    devices.netacc_check_sees_them groups.slow_readers_within_limits""".split()


def core(names, random):
    """Those of the names that a run that is not whole has, in their order."""
    taken, others = set(), []
    for name in names:
        base, _, mode = name.partition("[")
        if base in NEITHER:
            continue
        if base in BOTH or mode != "siw]" and (base in ALWAYS or base.partition(".")[0] in ALWAYS):
            taken.add(name)
        elif mode != "siw]":
            others.append(name)
    taken.update(random.sample(others, min(BY_LOT, len(others))))
    return [name for name in names if name in taken]
