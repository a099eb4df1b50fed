"""The file of an artifact: `model.smelt`, one file with tables, machine code and weights, that runs without Python.

    header     magic, version, bytes of the whole file, number of sections, checksum of the header with its directory
    directory  of each section: kind, target, machine, features, offset, bytes, checksum
    MANIFEST   JSON, for people and for Python: argument trees, provenance; the C runtime does not read it
    TABLE      of one target: registers, states, variants, steps, as records of 64-bit words (`ir/table`)
    CODE       of the same target: an image of machine code, where each kernel begins in it, and its slots
    WEIGHTS    what CONSTANT registers hold: nothing writes it, all processes share the pages
    STATE      what STATE registers hold at first: each session has its own, and saving writes this section anew

A target is a TABLE and a CODE with the same number: programs differ between targets, as fusion does. A file
with several entry points has a TABLE and a CODE for each in every target, in the same order; their tables are named
MODEL.ENTRY, and have the same registers of STATE. Those that suit a
processor best come first; the first whose machine and features a processor has is used. Everything is little-endian.
Sections follow each other in that order, each at the next multiple of its alignment, with zeros between them. A
checksum is XXH64 (seed 0) of a section's bytes; the header's is that of header and directory, its own field zero.

What happens when it runs:

    registers   tensors between states, contiguous: INPUT (the caller's), STATE, CONSTANT, LOCAL (made while it runs). A
                register has its dtype and rank for good; the sizes of a LOCAL are those it was last made with. A
                Python number is a register of rank 0: bool, int64, float64; a string is its place in `choices`, int64.
                OPTIONAL: the caller may leave it out (None). WRITTEN: programs write the caller's memory
    states      the first variant whose symbols are in bounds and whose checks hold runs; state 0 is the entry
    symbols     integers that a variant binds when it is tried: a size of a register, or the value of one of rank 0 (a
                float64 by its bits), or whether an OPTIONAL one was given
    checks      expressions that must not be zero
    produced    registers that the variant makes anew: room for the sizes given here, which the register shows once all
                steps have run. So a variant may read a register and produce it, as loops do
    values      what steps work on, bytes of memory each: of a register as it was before, of a produced one, of the
                arena, or an array of int64 computed at entry (sizes for kernels)
    steps       launches of kernels, copies
    next        return registers, branch on a register of one bool, jump, or raise

Expressions are postfix code over a variant's symbols (`symbolic/postfix.py`): 64-bit integers, floats by their bits.

`artifact` has all of this as Python's objects, `write` makes bytes of them, `read` refuses files that are damaged
(SM050). The rules are in C, in csrc/executor and csrc/deploy/model.c. `container` and `code` have what the disk cache's
files share (`runtime/cache.py`): these hold a MANIFEST, maybe a TABLE with a flat program (`ir/table`), and a CODE for
each image, none of them of a target.
csrc/executor/records.h has the same records in C. Nothing here needs torch.
"""
