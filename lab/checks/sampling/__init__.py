"""What sampling must show: the right distribution, and one text however it is decoded."""
