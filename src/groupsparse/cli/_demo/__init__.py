"""The parts of the demo, one file each, and the page that shows them."""
