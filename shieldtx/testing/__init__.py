"""What tests of services need: a broker in memory."""
