"""INT4 linears side by side: this project's, its peers' and dense ones."""
