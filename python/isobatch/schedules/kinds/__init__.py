"""The kinds of schedule, one file each, and a line here for each file.

x is the optimizer step, 0 for the first update; lengths are numbers of steps. Lengths in epochs, samples, tokens or
percent belong to a recipe's schedule text ("multistep(30ep, 60ep)"), which a plan resolves.
"""

from isobatch.schedules.kinds.constant import constant as constant
from isobatch.schedules.kinds.cosine import cosine as cosine
from isobatch.schedules.kinds.cosine_restarts import cosine_restarts as cosine_restarts
from isobatch.schedules.kinds.exponential import exponential as exponential
from isobatch.schedules.kinds.goyal import goyal as goyal
from isobatch.schedules.kinds.inverse_sqrt import inverse_sqrt as inverse_sqrt
from isobatch.schedules.kinds.linear import linear as linear
from isobatch.schedules.kinds.linear_to_zero import linear_to_zero as linear_to_zero
from isobatch.schedules.kinds.multistep import multistep as multistep
from isobatch.schedules.kinds.one_cycle import one_cycle as one_cycle
from isobatch.schedules.kinds.one_minus_sqrt import one_minus_sqrt as one_minus_sqrt
from isobatch.schedules.kinds.polynomial import polynomial as polynomial
from isobatch.schedules.kinds.rex import rex as rex
from isobatch.schedules.kinds.step import step as step
from isobatch.schedules.kinds.table import table as table
from isobatch.schedules.kinds.tanh import tanh as tanh
from isobatch.schedules.kinds.trapezoid import trapezoid as trapezoid
from isobatch.schedules.kinds.vaswani import vaswani as vaswani
from isobatch.schedules.kinds.wsd import wsd as wsd
