"""Documented import paths of earlier versions; the code is in `rocketshim.admin`."""
