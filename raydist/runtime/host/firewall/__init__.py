"""Who can reach the ports of TensorFlow's servers: public addresses, and a fence of firewall rules."""
