"""Figures as pictures: plain numbers in, an Altair chart out. Nothing here knows what a plan is."""
