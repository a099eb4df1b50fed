"""Code for kernels that weigh their scores: attention in blocks of queries and keys, and its gradients."""
