"""rocketshim inside web frameworks: `rocketshim.contrib.asgi`, `rocketshim.contrib.django`.

Nothing else in rocketshim imports these modules. Each needs its framework: `rocketshim[asgi]`, `rocketshim[django]`.
"""
