"""redis' own tests. A test counts if it passes here on kernel TCP; it must then pass accelerated, at both ends."""

import judges

judges.register(judges.Redis, __name__)
