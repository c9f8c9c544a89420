"""Measures Steadyray against its peers on this machine: `steadyray bench quick` (`make bench-quick`).

`plan` says what is measured next, `trace` and `page` judge and show it (all three pure); `desk` and `bare`
make the clusters, and one module a section does the measuring. The trainings themselves are in
training_image/bench.
"""
