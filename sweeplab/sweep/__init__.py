"""Run studies: plan, train, steer and confirm them."""
