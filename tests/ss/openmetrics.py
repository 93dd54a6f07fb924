"""A strict parser of the text format of OpenMetrics 1.0, as far as counters, gauges and infos go."""

import re

NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
LABEL = rf'({NAME})="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\+Inf|-?[0-9]+(?:\.[0-9]+)?)")
SUFFIX = {"counter": "_total", "gauge": "", "info": "_info"}


class Wrong(Exception):
    pass


def need(condition, line, what):
    if not condition:
        raise Wrong(f"{what}: {line!r}")


def parse(text):
    """{family: (type, help, {labels as a sorted tuple: value})}"""
    need(text.endswith("# EOF\n") and text.count("# EOF") == 1, text[-40:], "the end is not # EOF and a line feed")
    need("\r" not in text, text[:40], "a carriage return")
    families, current = {}, None
    for line in text.splitlines()[:-1]:
        if line.startswith("# "):
            word, _, rest = line[2:].partition(" ")
            name, _, value = rest.partition(" ")
            need(re.fullmatch(NAME, name), line, "name of a family")
            if word == "TYPE":
                need(name not in families, line, "a family twice, or not in one piece")
                need(value in SUFFIX, line, "type")
                for other in families:
                    # What a family's samples are called must not be another family.
                    need(other + SUFFIX[families[other][0]] != name, line, "a name that is taken by samples")
                current, families[name] = name, (value, {}, {})
                continue
            need(name == current and word in ("HELP", "UNIT"), line, "not about the family that was begun")
            kind, about, samples = families[name]
            need(not samples and word not in about, line, "out of order or twice")
            need(word != "UNIT" or name.endswith("_" + value), line, "the unit is not the end of the name")
            need(word != "HELP" or not re.search(r'(?<!\\)(\\\\)*"', value), line, "a quote that is not escaped")
            about[word] = value
            continue
        found = SAMPLE.fullmatch(line)
        need(found, line, "no sample")
        kind, about, samples = families.get(current) or need(False, line, "before any family")
        need(found[1] == current + SUFFIX[kind], line, f"not of the family {current}")
        labels = tuple(sorted((k, v) for k, v in re.findall(LABEL, found[2] or "")))
        need(len({k for k, _ in labels}) == len(labels), line, "a label twice")
        need(labels not in samples, line, "a sample twice")
        value = float(found[found.re.groups])
        need(kind == "gauge" or value >= 0, line, "below zero")
        need(kind != "info" or value == 1, line, "an info is 1")
        samples[labels] = value
    for name, (_, about, samples) in families.items():
        need(about.get("HELP") and samples, name, "without help or samples")
    return families


def pick(families, name, **labels):
    """The values of a family that have these labels."""
    wanted = {(k, str(v)) for k, v in labels.items()}
    return [value for found, value in families[name][2].items() if wanted <= set(found)] if name in families else []
