"""What calls mean, by the kind of callable: builtins, containers, classes, modules, autograd functions."""
