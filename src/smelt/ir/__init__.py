"""The forms a program takes between stages. Stages meet only through the types here.

torch-level graph (`graph.TORCH`) → pure ATen graph (`graph.PURE`) → kernel program (`program.Program`).
"""
