"""What tasks reported, as rows on storage and as curves. Page and command line draw them."""
